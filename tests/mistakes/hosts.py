# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the watch of hosts: choice of peers, notifications, authentication."""

from .mutant import Mutant

MUTANTS = [
    # Hosts that vanish: connections and notifications.
    Mutant(
        "the choice of peers also counts ranks that have died",
        "watch/watch.c",
        "if (g->cards[r].port != 0)\n            m[count++]",
        "if (r != g->rank + 1)\n            m[count++]",
    ),
    Mutant(
        "the first rank of a host holds all its connections",
        "watch/watch.c",
        "if (own[(b + k) % here].rank == g->rank) {",
        "if (own[0].rank == g->rank) {",
    ),
    Mutant(
        "the end of a process counts as a lost host",
        "watch/link.c",
        "return error == ETIMEDOUT",
        "return !error || error == ETIMEDOUT",
    ),
    Mutant(
        "peers on other hosts are not notified of a lost host",
        "watch/watch.c",
        "link_tell(l, w->hosts[l->told]);",
        "(void)l;",
    ),
    Mutant(
        "a peer is not notified of a host lost before it connected",
        "watch/link.c",
        "l->told = 0;",
        "l->told = 1;",
    ),
    Mutant(
        "other processes of a host are not notified of a lost host",
        "watch/watch.c",
        "card_tell(&g->cards[r], host);",
        "(void)host;",
    ),
    Mutant(
        "the processes of a new group are not notified of hosts lost earlier",
        "watch/watch.c",
        "            watch_tell_group(g, w->hosts[i]);\n",
        "            (void)g;\n",
    ),
    Mutant(
        "a process can declare its own host lost",
        "watch/watch.c",
        "i < lost || own",
        "i < lost",
    ),
    Mutant(
        "sleeping threads are not woken when a host is lost",
        "watch/watch.c",
        "doorbell_wake_waiters(w->doorbell);\n    doorbell_wake_agent(w->doorbell);",
        "",
    ),
    # Foreign processes and broken peers.
    Mutant(
        "an incoming connection is accepted without a valid proof",
        "watch/link.c",
        "!siphash_equal(i->proof, link_proof(link, &i->handshake))",
        "false",
    ),
    Mutant(
        "an incoming connection replaces a proven one",
        "watch/link.c",
        "if (!link || link->state != LINK_AWAITED)\n        return LISTENER_CLOSE;\n    if (!siph",
        "if (!link)\n        return LISTENER_CLOSE;\n    if (!siph",
    ),
    Mutant(
        "the listener does not pause when no file descriptor is left",
        "watch/link.c",
        "l->paused_to = clock_us() + listener_pause_us;",
        "",
    ),
    Mutant(
        "the connecting side accepts any answer to its proof",
        "watch/link.c",
        "siphash_equal(l->incoming.answer, link_tag(l, LINK_ANSWER, &l->handshake))",
        "true",
        program="watch fuzz",
    ),
    Mutant(
        "a process accepts its own proof as the answer",
        "watch/link.c",
        "LINK_PROOF,\n    LINK_ANSWER,",
        "LINK_PROOF,\n    LINK_ANSWER = LINK_PROOF,",
        program="watch fuzz",
    ),
    Mutant(
        "a replayed message about a lost host is accepted",
        "watch/link.c",
        "link_news_tag(l, !connects, l->received++, news->host)",
        "link_news_tag(l, !connects, 0 * l->received++, news->host)",
        program="watch fuzz",
    ),
    Mutant(
        "a process accepts its own message when it is sent back",
        "watch/link.c",
        "LINK_FROM_CONNECTING,\n    LINK_FROM_LISTENING",
        "LINK_FROM_CONNECTING,\n    LINK_FROM_LISTENING = LINK_FROM_CONNECTING",
        program="watch fuzz",
    ),
    Mutant(
        "a connection stays open after a message about an unknown host",
        "watch/watch.c",
        'link_end(l);\n    watch_drop(w, "a connection to a peer that sent news',
        'watch_drop(w, "a connection to a peer that sent news',
    ),
]

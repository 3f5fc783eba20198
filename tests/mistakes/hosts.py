# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the choice of watched hosts, and in the trust of the watch."""

from .mutant import Mutant

MUTANTS = [
    # Hosts that vanish: connections and notifications.
    Mutant(
        "hosts are numbered with ranks that have died",
        "watch/watch.c",
        "if (g->cards[r].port != 0)\n            m[count++]",
        "if (r != g->rank + 1)\n            m[count++]",
    ),
    Mutant(
        "all connections of a host are of its first rank",
        "watch/watch.c",
        "if (own[(b + k) % here].rank == g->rank) {",
        "if (own[0].rank == g->rank) {",
    ),
    Mutant(
        "a process that ends is a lost host",
        "watch/link.c",
        "return error == ETIMEDOUT",
        "return !error || error == ETIMEDOUT",
    ),
    Mutant(
        "other hosts are not told",
        "watch/watch.c",
        "link_tell(l, w->hosts[l->told]);",
        "(void)l;",
    ),
    Mutant(
        "a peer is not told what was lost before it connected",
        "watch/link.c",
        "l->told = 0;",
        "l->told = 1;",
    ),
    Mutant(
        "the processes of a host are not told",
        "watch/watch.c",
        "card_tell(&g->cards[r], host);",
        "(void)host;",
    ),
    Mutant(
        "a process is not told what was lost before it joined",
        "watch/watch.c",
        "            watch_tell_group(g, w->hosts[i]);\n",
        "            (void)g;\n",
    ),
    Mutant(
        "the own host can be lost",
        "watch/watch.c",
        "i < lost || own",
        "i < lost",
    ),
    Mutant(
        "who sleeps is not woken",
        "watch/watch.c",
        "doorbell_wake_waiters(w->doorbell);\n    doorbell_wake_agent(w->doorbell);",
        "",
    ),
    # Foreign processes and broken peers.
    Mutant(
        "a stranger may come in",
        "watch/link.c",
        "!siphash_equal(i->proof, link_proof(link, &i->handshake))",
        "false",
    ),
    Mutant(
        "a proven connection is replaced",
        "watch/link.c",
        "if (!link || link->state != LINK_AWAITED)\n        return LISTENER_CLOSE;\n    if (!siph",
        "if (!link)\n        return LISTENER_CLOSE;\n    if (!siph",
    ),
    Mutant(
        "without a descriptor the listener does not pause",
        "watch/link.c",
        "l->paused_to = clock_us() + listener_pause_us;",
        "",
    ),
    Mutant(
        "any answer proves the other end",
        "watch/link.c",
        "siphash_equal(l->incoming.answer, link_tag(l, LINK_ANSWER, &l->handshake))",
        "true",
        program="watch fuzz",
    ),
    Mutant(
        "our own proof is an answer",
        "watch/link.c",
        "LINK_PROOF,\n    LINK_ANSWER,",
        "LINK_PROOF,\n    LINK_ANSWER = LINK_PROOF,",
        program="watch fuzz",
    ),
    Mutant(
        "news may be repeated",
        "watch/link.c",
        "link_news_tag(l, !connects, l->received++, news->host)",
        "link_news_tag(l, !connects, 0 * l->received++, news->host)",
        program="watch fuzz",
    ),
    Mutant(
        "our own news may be sent back",
        "watch/link.c",
        "LINK_FROM_CONNECTING,\n    LINK_FROM_LISTENING",
        "LINK_FROM_CONNECTING,\n    LINK_FROM_LISTENING = LINK_FROM_CONNECTING",
        program="watch fuzz",
    ),
    Mutant(
        "a peer may send unknown hosts",
        "watch/watch.c",
        'link_end(l);\n    watch_drop(w, "a connection to a peer that sent news',
        'watch_drop(w, "a connection to a peer that sent news',
    ),
]

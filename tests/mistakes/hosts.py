# SPDX-License-Identifier: Apache-2.0
"""Of who watches which host."""

from .mutant import Mutant

MUTANTS = [
    # Hosts that vanish: who watches whom, and who is believed.
    Mutant(
        "hosts are numbered with ranks that have died",
        "watch/pairing.c",
        "!(is_first(p, r) && p->hosts[r] == host)",
        "p->hosts[r] != host",
    ),
    Mutant(
        "all connections of a host are of its first rank",
        "watch/pairing.c",
        "if (member(p, own, (b + k) % here) == p->rank)",
        "if (member(p, own, 0) == p->rank)",
    ),
    Mutant(
        "a stranger may come in",
        "watch/entrance.c",
        "bool known = g->said.to == cookie;",
        "bool known = true;",
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
        "link_tell(l, host);",
        "(void)l;",
    ),
    Mutant(
        "the processes of a host are not told",
        "watch/watch.c",
        "neighbors_tell(&w->neighbors, &p->cards[r], host);",
        "(void)p;",
    ),
    Mutant(
        "the own host can be lost",
        "watch/watch.c",
        "is_gone(w, host) || is_own(w, host)",
        "is_gone(w, host)",
    ),
    Mutant(
        "who sleeps is not rung",
        "watch/watch.c",
        "doorbell_wake_waiters(w->doorbell);\n    doorbell_wake_agent(w->doorbell);",
        "",
    ),
]

# SPDX-License-Identifier: Apache-2.0
"""The fields of every row of an allreduce."""

ROW = [
    "collective",
    "domain",
    "algorithm",
    "ranks",
    "count",
    "bytes",
    "latency_us_avg",
    "latency_us_p50",
    "latency_us_p99",
    "active_mean",
    "speedup_vs_mpi",
    "limit_us",
    "speedup_vs_limit",
    "bandwidth_gbs",
    "busbw_gbs",
    "wrong",
]

# SPDX-License-Identifier: Apache-2.0
"""The matrices of a topology and what their eigenvalues say.

Each function takes the graphs of a period (one for a static topology) or one graph. `Offsets` are
diagonal after a Fourier transform, which takes n log n steps where eigenvalues of a dense matrix
take n cubed; tests compare the two.

Chi's and parameters: Nabli, Belilovsky, Oyallon, "A2CiD2: Accelerating Asynchronous Communication
in Decentralized Deep Learning", NeurIPS 2023, section 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .graph import Floats, Graph, Offsets


def choices(graph: Graph) -> Floats:
    """P[i, j]: how often i, when it chooses, chooses j. Rows sum to 1, or 0 without neighbors."""
    matrix = weights(graph)
    sums = matrix.sum(axis=1, keepdims=True)
    return matrix / np.where(sums > 0, sums, 1.0)


def weights(graph: Graph) -> Floats:
    """The weight of the edge from i to j, as a dense matrix."""
    matrix = np.zeros((graph.n, graph.n))
    sources, targets, values = graph.arcs()
    matrix[sources, targets] = values
    return matrix


def edge_rates(graphs: tuple[Graph, ...], rate: float) -> Floats:
    """Expected averagings of every edge per unit of time, as a symmetric matrix.

    Every rank starts rate / 2 averagings and chooses by weight, so it takes part in `rate` of
    them, on average over the ranks; on a d-regular graph each edge gets rate / d.
    """
    total: Floats = np.mean([choices(graph) for graph in graphs], axis=0) * (rate / 2)
    return total + total.T


def laplacian(graphs: tuple[Graph, ...], rate: float) -> Floats:
    """Sum over the edges of lambda_ij (e_i - e_j)(e_i - e_j)^T. A2CiD2, definition 3.1, (1)."""
    rates = edge_rates(graphs, rate)
    matrix: Floats = np.diag(rates.sum(axis=1)) - rates
    return matrix


def chi(graphs: tuple[Graph, ...]) -> tuple[float, float]:
    """chi1 and chi2 at rate 1 of a connected topology; (0, 0) for one rank."""
    if graphs[0].n == 1:
        return 0.0, 0.0
    alike = [graph for graph in graphs if isinstance(graph, Offsets)]
    same_grid = len({graph.shape for graph in alike}) == 1 and len(alike) == len(graphs)
    return _chi_fourier(alike) if same_grid else _chi_dense(graphs)


def _chi_dense(graphs: tuple[Graph, ...]) -> tuple[float, float]:
    matrix = laplacian(graphs, 1.0)
    values, vectors = np.linalg.eigh(matrix)
    pseudo = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
    own = np.diag(pseudo)
    resistance = own[:, None] + own[None, :] - 2 * pseudo
    edges = matrix < 0
    return float(1 / values[1]), float(0.5 * resistance[edges].max())


def _chi_fourier(graphs: list[Offsets]) -> tuple[float, float]:
    # The Laplacian is 1 - (P + P^T) / 2: the real part of the transform does the transposing.
    row = sum(_row(graph) / graph.weights.sum() for graph in graphs) / len(graphs)
    values = (1.0 - np.fft.fftn(row).real).ravel()
    inverse = np.zeros_like(values)
    inverse[1:] = 1 / values[1:]
    pseudo = np.fft.ifftn(inverse.reshape(row.shape)).real.ravel()
    resistance = 2 * (pseudo[0] - pseudo[np.flatnonzero(row)])
    return float(1 / values[1:].min()), float(0.5 * resistance.max())


def _row(graph: Offsets) -> Any:
    """Weights of the edges of rank 0, laid out on the grid."""
    row = np.zeros(graph.n)
    row[graph.offsets] = graph.weights
    return row.reshape(graph.shape)


def mixing_matrix(graph: Graph) -> Floats:
    """Metropolis weights: W[i, j] = w_ij / (1 + max(s_i, s_j)), s the sum of a rank's weights."""
    matrix = weights(graph)
    sums = matrix.sum(axis=1)
    matrix /= 1 + np.maximum(sums[:, None], sums[None, :])
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    return matrix


def push_matrix(graph: Graph) -> Floats:
    """Column i: the shares into which rank i divides itself, 1 for itself, w_ij for rank j."""
    matrix = weights(graph).T + np.eye(graph.n)
    shares: Floats = matrix / matrix.sum(axis=0, keepdims=True)
    return shares


def spectral_gap(graph: Graph) -> float:
    """1 - the second largest modulus of an eigenvalue of mixing (if directed, push) matrix."""
    if graph.n == 1:
        return 1.0
    if isinstance(graph, Offsets):
        moduli = np.abs(1 + np.fft.fftn(_row(graph))).ravel() / (1 + graph.weights.sum())
    elif graph.directed:
        moduli = np.abs(np.linalg.eigvals(push_matrix(graph)))
    else:
        moduli = np.abs(np.linalg.eigvalsh(mixing_matrix(graph)))
    return max(0.0, float(1 - np.sort(moduli)[-2]))

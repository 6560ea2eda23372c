"""In-context segmentation by nested loops, written from the definition, for comparison only."""

import math

import numpy as np

Vector = list[float]


def cosine(a: Vector, b: Vector) -> float:
    product = sum(x * y for x, y in zip(a, b))
    return product / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def predict(
    query: Vector, bank: list[Vector], histograms: list[Vector], k: int, temperature: float
) -> Vector:
    """The mean of the k nearest patches' histograms, weighted by softmax(cosine / temperature)."""
    cosines = [cosine(query, entry) for entry in bank]
    nearest = sorted(range(len(bank)), key=lambda entry: -cosines[entry])[:k]
    weights = [math.exp((cosines[entry] - cosines[nearest[0]]) / temperature) for entry in nearest]
    mean = [0.0] * len(histograms[0])
    for weight, entry in zip(weights, nearest):
        for label, part in enumerate(histograms[entry]):
            mean[label] += weight / sum(weights) * part
    return mean


def count_labels(labels: np.ndarray, classes: int, rows: int, columns: int) -> np.ndarray:
    """Pixels of each class in each patch; a pixel belongs to the patch that contains its center."""
    height, width = labels.shape
    counts = np.zeros((rows, columns, classes), int)
    for y in range(height):
        for x in range(width):
            inside = [
                (row, column)
                for row in range(rows)
                for column in range(columns)
                if row * 2 * height <= (2 * y + 1) * rows < (row + 1) * 2 * height
                and column * 2 * width <= (2 * x + 1) * columns < (column + 1) * 2 * width
            ]
            assert len(inside) == 1
            if labels[y, x] != 255:
                counts[inside[0]][labels[y, x]] += 1
    return counts


def choose(counts: np.ndarray, share: int, draws: Vector) -> set[int]:
    """The indices of the patches stored for one image; counts are "patches classes"."""
    frequency = [sum(patch[label] > 0 for patch in counts) for label in range(counts.shape[1])]
    scores = {}
    for number, patch in enumerate(counts):
        if patch.sum() > 0:
            inside = [frequency[label] for label in range(counts.shape[1]) if patch[label] > 0]
            scores[number] = sum(inside) * draws[number]
    return set(sorted(scores, key=lambda number: scores[number])[:share])

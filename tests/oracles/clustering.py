"""The clustering by nested loops in float64, written from its definition, for comparison only.

Nothing here is fast, batched or shared with the package. In addition to the result, each oracle
reports the margins of its discrete decisions, so that a test can exclude near-ties. Degenerate
scales give cost 0: distance/S if all distances are 0, min-max if all costs of a batch are equal.
"""

import math
from dataclasses import dataclass

import numpy as np

Vector = list[float]
Matrix = list[Vector]


@dataclass
class OracleResult:
    """A clustering of B images by H heads, and the margins of its decisions."""

    assignments: np.ndarray  # M B H N K
    valid: np.ndarray  # B H K
    cost: np.ndarray  # B H
    count: np.ndarray  # B H
    step_costs: np.ndarray  # B H K_start-1: d_c from K_start centroids down to two
    merge_gap: np.ndarray
    """B H: smallest relative gap, over the steps, between the two best pairs to merge."""
    count_gap: np.ndarray
    """B H: relative gap between the two lowest d_c that could be chosen."""
    argmax_gap: np.ndarray
    """B H: smallest relative gap, over the tokens, between the two largest columns of a row."""


@dataclass
class _Step:
    """The result of one step for one image and head."""

    plan: Matrix
    assignments: Matrix
    cost: float


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b))


def unit(a: Vector) -> Vector:
    length = math.sqrt(dot(a, a))
    return [x / length for x in a] if length > 0 else [0.0] * len(a)


def softmax(values: Vector) -> Vector:
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def log_sum(logarithms: Vector) -> float:
    top = max(logarithms)
    return top + math.log(sum(math.exp(value - top) for value in logarithms))


def mean(a: Vector, b: Vector) -> Vector:
    return [(x + y) / 2 for x, y in zip(a, b)]


def gap(values: Vector, *, largest: bool) -> float:
    """Between the best and the second best of some values, relative to their size."""
    if len(values) < 2:
        return math.inf
    best, second = sorted(values, reverse=largest)[:2]
    size = max(abs(best), abs(second))
    return abs(best - second) / size if size > 0 else 0.0


def column_sums(matrix: Matrix) -> Vector:
    return [sum(row[k] for row in matrix) for k in range(len(matrix[0]))]


def divide_columns(matrix: Matrix) -> Matrix:
    """Each column divided by its sum."""
    sums = column_sums(matrix)
    return [[value / (total or 1.0) for value, total in zip(row, sums)] for row in matrix]


def gather(weights: Matrix, values: Matrix) -> Matrix:
    """weightsᵀ · values: for each column of the weights, the weighted sum of the rows."""
    sums = [[0.0] * len(values[0]) for _ in weights[0]]
    for weight_row, value_row in zip(weights, values):
        for k, weight in enumerate(weight_row):
            for x, value in enumerate(value_row):
                sums[k][x] += weight * value
    return sums


def sinkhorn(
    cost: Matrix, rows: Vector, columns: Vector, sharpness: float, iterations: int
) -> tuple[Matrix, Vector]:
    """Scales exp(-sharpness · cost) to its row marginals, then to its column marginals, repeatedly.

    In the log domain: f and g are the logarithms of the factors of rows and columns. Returns the
    plan and g.
    """
    f, g = [0.0] * len(rows), [0.0] * len(columns)
    for _ in range(iterations):
        for n, row in enumerate(cost):
            f[n] = log(rows[n]) - log_sum([g[k] - sharpness * c for k, c in enumerate(row)])
        for k in range(len(columns)):
            g[k] = log(columns[k]) - log_sum(
                [f[n] - sharpness * row[k] for n, row in enumerate(cost)]
            )
    plan = [
        [math.exp(f[n] + g[k] - sharpness * c) for k, c in enumerate(row)]
        for n, row in enumerate(cost)
    ]
    return plan, g


def transport_cost(plan: Matrix, cost: Matrix) -> float:
    return sum(dot(plan_row, cost_row) for plan_row, cost_row in zip(plan, cost))


def best_pair(similarity: dict[tuple[int, int], float]) -> tuple[int, int]:
    return max(similarity, key=lambda pair: similarity[pair])


def choose(step_costs: Vector, k_start: int, config) -> tuple[int, float]:
    """The index of the chosen step, and the gap to the runner-up; the larger K wins a tie."""
    k_max = k_start if config.k_max is None else config.k_max
    first = k_start - k_max
    if config.k_select == "fixed":
        return first, math.inf
    candidates = step_costs[first:]
    return first + candidates.index(min(candidates)), gap(candidates, largest=False)


def paper_steps(
    tokens: Matrix, positions: Matrix, saliency: Vector, seeds: list[int], config
) -> tuple[list[_Step], float]:
    """All steps of one image and head as in the paper, and the smallest gap between pairs."""
    weight = config.position_weight
    tokens = [unit(token) for token in tokens]
    saliency = [max(value, 1e-20) for value in saliency]
    sides = [max(p[axis] for p in positions) - min(p[axis] for p in positions) for axis in (0, 1)]
    diagonal = math.hypot(*sides)
    centroids = [tokens[seed] for seed in seeds]
    centers = [positions[seed] for seed in seeds]
    Y = [[1.0 if n == seed else 0.0 for n in range(len(tokens))] for seed in seeds]  # K × T

    def entry(token: Vector, position: Vector, centroid: Vector, center: Vector) -> float:
        distance = math.dist(position, center) / diagonal if diagonal > 0 else 0.0
        if math.isinf(weight):
            return distance
        return -dot(token, centroid) + weight * distance

    steps, merge_gap = [], math.inf
    while True:
        columns = softmax([dot(y, saliency) for y in Y])
        units = [unit(centroid) for centroid in centroids]
        cost = [
            [entry(token, position, centroid, center) for centroid, center in zip(units, centers)]
            for token, position in zip(tokens, positions)
        ]
        if config.sizes == "free":
            rows = [softmax([-config.sharpness * c for c in row]) for row in cost]
            plan = [[weight * p for p in row] for weight, row in zip(saliency, rows)]
            g = [0.0] * len(Y)
        else:
            plan, g = sinkhorn(
                cost, saliency, columns, config.sharpness, config.sinkhorn_iterations
            )
        # The plan's rows divided by their sums.
        assignments = [
            softmax([g[k] - config.sharpness * c for k, c in enumerate(row)]) for row in cost
        ]
        steps.append(_Step(plan, assignments, transport_cost(plan, cost)))
        if len(Y) == 2:
            return steps, merge_gap

        weights = divide_columns(plan)
        centroids, centers = gather(weights, tokens), gather(weights, positions)
        similarity = {
            (i, j): dot(unit(centroids[i]), unit(centroids[j]))
            for i in range(len(Y))
            for j in range(i + 1, len(Y))
        }
        merge_gap = min(merge_gap, gap(list(similarity.values()), largest=True))
        i, j = best_pair(similarity)
        for rows in (centroids, centers, Y):
            rows[i] = mean(rows[i], rows[j])
            del rows[j]


def cluster_paper(tokens, positions, saliency, seeds, config, views=2) -> OracleResult:
    """The paper's clustering: images and heads are independent."""
    tokens, positions, saliency = (_lists(array) for array in (tokens, positions, saliency))
    seeds = np.asarray(seeds).tolist()
    B, H, T, K = len(tokens), len(tokens[0]), len(tokens[0][0]), len(seeds[0][0])
    result = _empty(views, B, H, T // views, K)
    for b in range(B):
        for h in range(H):
            steps, result.merge_gap[b, h] = paper_steps(
                tokens[b][h], positions[b], saliency[b][h], seeds[b][h], config
            )
            chosen, result.count_gap[b, h] = choose([step.cost for step in steps], K, config)
            soft = steps[chosen].assignments
            hard = [[k == row.index(max(row)) for k in range(len(row))] for row in soft]
            result.argmax_gap[b, h] = min(gap(row, largest=True) for row in soft)
            _fill(result, b, h, soft, hard, [step.cost for step in steps], chosen)
    return result


def released_costs(states: list["_Released"], weight: float) -> list[Matrix]:
    """The costs of all images and heads at one step, jointly rescaled to 0 … 1."""
    raw = []
    for state in states:
        distances = [
            [math.dist(position, center) for center in state.centers]
            for position in state.positions
        ]
        largest = max(max(row) for row in distances)
        units = [unit(centroid) for centroid in state.centroids]
        cost = []
        for token, row in zip(state.tokens, distances):
            near = [value / largest if largest > 0 else 0.0 for value in row]
            if math.isinf(weight):
                cost.append(near)
            else:
                cost.append([-dot(token, u) + weight * value for u, value in zip(units, near)])
        raw.append(cost)
    low = min(value for cost in raw for row in cost for value in row)
    high = max(value for cost in raw for row in cost for value in row)
    span = high - low if high > low else 1.0
    return [[[(value - low) / span for value in row] for row in cost] for cost in raw]


class _Released:
    """The state of one image and head during the released code's steps."""

    def __init__(self, tokens, positions, cosine, seeds):
        self.tokens = [unit(token) for token in tokens]
        self.positions = positions
        self.rows = softmax([value / 2 for value in cosine])
        self.columns = softmax([cosine[seed] / 2 for seed in seeds])
        self.centroids = [self.tokens[seed] for seed in seeds]
        self.centers = [positions[seed] for seed in seeds]
        self.steps: list[_Step] = []
        self.merge_gap = math.inf

    def assign(self, cost: Matrix, config) -> None:
        # The initial division by the kernel's sum is undone by the first scaling of the rows.
        # Costs in 0 … 1 and rows from a softmax cannot give NaN.
        plan, _ = sinkhorn(
            cost, self.rows, self.columns, config.sharpness, config.sinkhorn_iterations
        )
        self.steps.append(_Step(plan, plan, transport_cost(plan, cost)))

    def merge(self) -> None:
        plan = self.steps[-1].plan
        centroids = gather(divide_columns(plan), self.tokens)
        similarity = {
            (i, j): dot(centroids[i], centroids[j])
            for i in range(len(centroids))
            for j in range(i + 1, len(centroids))
        }
        self.merge_gap = min(self.merge_gap, gap(list(similarity.values()), largest=True))
        i, j = best_pair(similarity)
        merged = [
            [value for k, value in enumerate(row) if k not in (i, j)] + [row[i] + row[j]]
            for row in plan
        ]
        weights = divide_columns(merged)
        self.centroids = gather(weights, self.tokens)
        self.centers = gather(weights, self.positions)
        columns = [
            sum(r * row[k] for r, row in zip(self.rows, weights)) for k in range(len(weights[0]))
        ]
        self.columns = [value / sum(columns) for value in columns]


def cluster_released(tokens, positions, saliency, seeds, config, views=2) -> OracleResult:
    """The released code's clustering: all images and heads share the scale of the cost."""
    tokens, positions, saliency = (_lists(array) for array in (tokens, positions, saliency))
    seeds = np.asarray(seeds).tolist()
    B, H, T, K = len(tokens), len(tokens[0]), len(tokens[0][0]), len(seeds[0][0])
    N = T // views
    states = {
        (b, h): _Released(tokens[b][h], positions[b], saliency[b][h], seeds[b][h])
        for b in range(B)
        for h in range(H)
    }
    for k in range(K, 1, -1):
        costs = released_costs(list(states.values()), config.position_weight)
        for state, cost in zip(states.values(), costs):
            state.assign(cost, config)
            if k > 2:
                state.merge()

    result = _empty(views, B, H, N, K)
    for (b, h), state in states.items():
        step_costs = [step.cost for step in state.steps]
        chosen, result.count_gap[b, h] = choose(step_costs, K, config)
        plan = state.steps[chosen].plan
        shares = [row for m in range(views) for row in divide_columns(plan[m * N : m * N + N])]
        hard = [[value == max(row) for value in row] for row in shares]
        masked = [
            [value if won else 0.0 for value, won in zip(row, wins)]
            for row, wins in zip(shares, hard)
        ]
        _fill(result, b, h, masked, hard, step_costs, chosen)
        result.argmax_gap[b, h] = min(gap(row, largest=True) for row in shares)
        result.merge_gap[b, h] = state.merge_gap
    return result


def centroids(patches, assignments, cls, variant="paper") -> np.ndarray:
    """M B H K D: the centroids of each view in last-layer patches, with the length of a CLS token.

    The length is the mean over the image's views in `paper`, over the batch in `released`. A
    cluster without assignments, such as padding, is 0.
    """
    patches, cls = np.asarray(patches, np.float64), np.asarray(cls, np.float64)
    assignments = np.asarray(assignments, np.float64)
    M, B, H, N, K = assignments.shape
    norms = [[math.sqrt(dot(cls[m, b], cls[m, b])) for b in range(B)] for m in range(M)]
    result = np.zeros((M, B, H, K, patches.shape[-1]))
    for b in range(B):
        if variant == "paper":
            length = sum(norms[m][b] for m in range(M)) / M
        else:
            length = sum(sum(row) for row in norms) / (M * B)
        for m in range(M):
            for h in range(H):
                for k in range(K):
                    total = np.zeros(patches.shape[-1])
                    for n in range(N):
                        total += assignments[m, b, h, n, k] * patches[m, b, n]
                    result[m, b, h, k] = [length * value for value in unit(total.tolist())]
    return result


def _lists(array) -> list:
    return np.asarray(array, np.float64).tolist()


def _empty(M: int, B: int, H: int, N: int, K: int) -> OracleResult:
    shapes = ((M, B, H, N, K), (B, H, K), (B, H), (B, H), (B, H, K - 1), (B, H), (B, H), (B, H))
    result = OracleResult(*(np.zeros(shape) for shape in shapes))
    result.valid, result.count = result.valid.astype(bool), result.count.astype(int)
    return result


def _fill(result, b, h, assignments: Matrix, hard: list[list[bool]], costs: Vector, chosen) -> None:
    """Splits the joined tokens by view and marks the clusters present in every view."""
    M, _, _, N, K = result.assignments.shape
    count = K - chosen
    for m in range(M):
        for n in range(N):
            for k in range(count):
                result.assignments[m, b, h, n, k] = assignments[m * N + n][k]
    for k in range(count):
        result.valid[b, h, k] = all(any(hard[m * N + n][k] for n in range(N)) for m in range(M))
    result.cost[b, h], result.count[b, h] = costs[chosen], count
    result.step_costs[b, h] = costs

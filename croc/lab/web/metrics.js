// The metrics of a run: their groups, titles and explanations, and the lines to compare them with.

const METRICS = [
  ["Losses", [
    ["loss", "Loss", "what is minimized"],
    ["loss_image", "Image loss", "cross-entropy with the teacher"],
    ["loss_cluster", "Cluster loss", "the same for shared centroids"],
    ["loss_anchor", "Anchor loss", "change of patch similarities"],
  ]],
  ["Teacher", [
    ["entropy_image", "Teacher entropy, images", "0: one prototype; log P: uniform"],
    ["entropy_cluster", "Teacher entropy, clusters", "0: one prototype; log P: uniform"],
    ["kl_image", "KL, images", "what the student has yet to learn"],
    ["kl_cluster", "KL, clusters", "what the student has yet to learn"],
  ]],
  ["Clusters", [
    ["mean_k", "Mean K", "clusters per head, 2 to K start"],
    ["effective_clusters", "Effective clusters", "per token, 1 (hard) to K"],
    ["largest_assignment", "Largest assignment", "of a token, 1/K to 1 (hard)"],
    ["valid_fraction", "Valid share", "of clusters, present in both views"],
  ]],
  ["Dense features", [
    ["position", "Variance by position", "share that the position explains"],
    ["image", "Variance by image", "share that the image explains"],
    ["neighbors", "Correlation of neighbors", "of adjacent patch tokens"],
    ["rank", "Effective rank", "of the patch tokens; 1: all alike"],
    ["agreement", "Agreement", "clusters matched across views"],
    ["drift", "Drift", "of patch similarities from the start; 0: unchanged"],
  ]],
  ["Optimizer", [
    ["gradient_norm", "Gradient norm", "before clipping"],
    ["lr", "Learning rate", "by its schedule"],
    ["weight_decay", "Weight decay", "by its schedule"],
  ]],
  ["Speed", [
    ["images_per_s", "Images per second", "between two lines of the log"],
    ["seconds", "Seconds", "since the run was last started"],
  ]],
];

// Groups of metrics that a run has: known ones in their order, then others by name.
function chartsOf(runs) {
  const names = new Set(runs.flatMap((run) => Object.keys(run.curves)));
  names.delete("agreement_chance"); // the agreement's reference line instead
  const known = new Set(METRICS.flatMap(([, metrics]) => metrics.map(([name]) => name)));
  const others = [...names].filter((name) => !known.has(name)).sort();
  return [...METRICS, ["Other metrics", others.map((name) => [name, name, ""])]]
    .map(([group, metrics]) => [group, metrics.filter(([name]) => names.has(name))]);
}

// Horizontal lines to compare a metric with; one that `fits` is always within the axis.
function referencesOf({ options, curves }) {
  const chance = Object.hasOwn(curves, "agreement_chance") && curves.agreement_chance.y.at(-1);
  const lines = [
    ["effective_clusters", "hard", 1, true],
    ["largest_assignment", "hard", 1, true],
    ["valid_fraction", "one half", 0.5, true],
    ["entropy_image", "log P", Math.log(options["head.image_prototypes"]), true],
    ["entropy_cluster", "log P", Math.log(options["head.cluster_prototypes"]), true],
    ["kl_image", "log P", Math.log(options["head.image_prototypes"]), false],
    ["kl_cluster", "log P", Math.log(options["head.cluster_prototypes"]), false],
    ["mean_k", "K start", options["cluster.k_start"], true],
    ["gradient_norm", "clipped at", options["optim.clip_gradient"], false],
    ["agreement", "chance", chance, true],
  ];
  return new Map(lines.filter(([, , value]) => value)
    .map(([name, label, value, fits]) => [name, { label, value, fits }]));
}

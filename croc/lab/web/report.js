// The parts of a report that need a script: curves with their controls, clusters, the search.

function buildCurves(place, data) {
  const shared = new Shared(data.runs);
  place.append(toolbar(shared));
  const charts = [];
  for (const group of data.groups) {
    const specs = data.charts.filter((spec) => spec.group === group);
    if (!specs.length) continue;
    const grid = make("div", { class: "charts" });
    for (const spec of specs) {
      const chart = new Chart(spec, shared);
      addGestures(chart);
      charts.push(chart);
      grid.append(chart.node);
    }
    place.append(make("h3", {}, group), grid);
  }
  watch(charts);
}

// Only what is in sight or near it is drawn; all of it before printing.
function watch(charts) {
  const byNode = new Map(charts.map((chart) => [chart.node, chart]));
  const nearby = new IntersectionObserver((entries) => {
    for (const entry of entries) byNode.get(entry.target).appear(entry.isIntersecting);
  }, { rootMargin: "400px" });
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const chart = byNode.get(entry.target);
      chart.appear(chart.near);
    }
  });
  for (const chart of charts) {
    nearby.observe(chart.node);
    sizes.observe(chart.node);
  }
  window.addEventListener("beforeprint", () => charts.forEach((chart) => chart.draw()));
}

function toolbar(shared) {
  const smoothing = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0,
    id: "smoothing" });
  const much = make("output", { for: "smoothing" }, "0");
  smoothing.addEventListener("input", () => {
    much.textContent = smoothing.value;
    shared.set({ smoothing: Number(smoothing.value) });
  });
  const bar = make("div", { class: "card toolbar no-print" },
    shared.runs.length > 1 ? legend(shared) : null,
    make("div", { class: "field" }, make("label", { for: "unit" }, "Axis"), units(shared)),
    make("div", { class: "field grow" }, make("label", { for: "smoothing" }, "Smoothing"), smoothing, much),
    resetter(shared),
    make("p", { class: "soft small hint mouse" }, "Drag over a chart to zoom, double click to see all; "
      + "the wheel zooms a chart that was clicked. Keys: ← → cursor, + − zoom, 0 all."),
    make("p", { class: "soft small hint touch" }, "Touch a chart to read it, pinch it to zoom."));
  return bar;
}

function legend(shared) {
  const list = make("div", { class: "legend", role: "group", "aria-label": "Runs shown" });
  for (const run of shared.runs) {
    const box = make("input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => {
      const hidden = new Set(shared.hidden);
      if (box.checked) hidden.delete(run);
      else hidden.add(run);
      shared.set({ hidden });
    });
    list.append(make("label", {}, box, swatchOf(run), run.name));
  }
  return list;
}

function units(shared) {
  const select = make("select", { id: "unit" });
  for (const unit of ["steps", "images", "epochs"]) {
    if (shared.runs.some((run) => perStep(run, unit))) select.append(make("option", {}, unit));
  }
  select.addEventListener("change", () => shared.setUnit(select.value));
  return select;
}

function resetter(shared) {
  const button = make("button", { type: "button", "data-reset": "" }, "All of it");
  button.disabled = true;
  button.addEventListener("click", () => shared.set({ range: null }));
  shared.listeners.push(() => {
    button.disabled = shared.range === null;
    const [low, high] = shared.seen.map((edge) => numberText(edge, 3));
    button.textContent = shared.range ? `Zoomed to ${low} … ${high}: see all` : "All of it";
  });
  return button;
}

// Pictures of all runs under one slider over every step that any of them has.
function buildClusters(place, data) {
  const runs = data.runs.filter((run) => run.pictures.length);
  const steps = [...new Set(runs.flatMap((run) => run.pictures.map(({ step }) => step)))];
  steps.sort((a, b) => a - b);
  const slider = make("input", { type: "range", min: 0, max: steps.length - 1, step: 1,
    value: steps.length - 1, id: "picture-step" });
  const said = make("output", { for: "picture-step", class: "step-shown" });
  const boards = runs.map((run) => ({ run, node: make("div", { class: "board" }), shown: null }));
  const show = () => {
    const step = steps[Number(slider.value)];
    said.textContent = `step ${numberText(step)}`;
    slider.setAttribute("aria-valuetext", said.textContent);
    for (const board of boards) showPicture(board, step, runs.length > 1);
  };
  slider.addEventListener("input", show);
  place.append(
    make("div", { class: "card toolbar no-print" }, make("div", { class: "field grow" },
      make("label", { for: "picture-step" }, "Training"), slider, said)),
    make("p", { class: "soft small about" }, "Two augmented views of each image, one above the other, and "
      + "what the teacher's attention heads make of them. A cluster has one colour in both views; "
      + "one that a view lacks is hatched and does not train. Where a patch belongs to several, their "
      + "colours mix; the share is its largest one, on average."),
    ...boards.map((board) => board.node));
  show();
}

// The last picture of a run that is not after the step.
function showPicture(board, step, many) {
  const { run, node } = board;
  const picture = run.pictures.findLast((each) => each.step <= step) ?? run.pictures[0];
  if (board.shown === picture) return;
  board.shown = picture;
  const named = `${run.name}, step ${numberText(picture.step)}`;
  node.replaceChildren();
  if (many) node.append(make("h3", { class: "run-name" }, swatchOf(run), named));
  const blocks = make("div", { class: "blocks" });
  const { about } = picture;
  const count = about ? about.images.length : 1;
  for (let image = 0; image < count; image += 1) {
    blocks.append(pictureBlock(picture, image, count, named));
  }
  if (about && about.heads < about.of) {
    node.append(make("p", { class: "soft small" }, `The first ${about.heads} of ${about.of} heads.`));
  }
  node.append(blocks);
}

// One image's rows out of the sheet of all: the picture is as wide as the block, and moved up.
function pictureBlock(picture, image, count, named) {
  const { about, size, src } = picture;
  const whose = about ? about.images[image] : "clusters";
  const img = make("img", { class: "slice", src, alt: `${whose}: two views and their clusters, ${named}` });
  img.style.aspectRatio = `${size[0]} / ${size[1] / count}`;
  img.style.objectPosition = `0 ${count > 1 ? (100 * image) / (count - 1) : 0}%`;
  const block = make("figure", { class: "card block" });
  if (about) {
    const heads = make("div", { class: "heads soft" }, make("span", {}, "views"));
    heads.style.gridTemplateColumns = `repeat(${about.heads + 1}, 1fr)`;
    about.k[image].forEach((k, head) => heads.append(make("span", {},
      make("span", {}, `head ${head}`), make("span", {}, `K ${k}, ${about.shared[image][head]} shared`),
      make("span", {}, `share ${about.share[image][head].toFixed(2)}`))));
    block.append(make("figcaption", {}, whose), heads);
  }
  block.append(img);
  return block;
}

// Every word must occur in an option's name or value.
function buildSearch(input, found) {
  const rows = [...document.querySelectorAll("[data-option]")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = texts.map((text) => words.every((word) => text.includes(word)));
    rows.forEach((row, at) => { row.hidden = !fits[at]; });
    for (const part of document.querySelectorAll("[data-part]")) {
      part.hidden = !part.querySelector("[data-option]:not([hidden])");
    }
    const count = fits.filter(Boolean).length;
    found.textContent = words.length ? `${count} of ${rows.length}` : "";
  });
}

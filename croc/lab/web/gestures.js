// Pointer, wheel and keys on a chart.

const DRAG_PX = 6;

function addGestures(chart) {
  const { plot, shared } = chart;
  let drag = null;
  const local = (event) => event.clientX - plot.getBoundingClientRect().left;
  const inPlot = (px) => Math.min(Math.max(px, EDGE.left), chart.width - EDGE.right);

  const select = (from, to) => {
    chart.overlay?.querySelector(".selection")?.remove();
    if (Math.abs(to - from) < DRAG_PX) return;
    chart.overlay.append(makeSvg("rect", { class: "selection", x: Math.min(from, to), y: EDGE.top,
      width: Math.abs(to - from), height: chart.down }));
  };

  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    plot.setPointerCapture(event.pointerId);
    drag = inPlot(local(event));
    moveCursorTo(chart, chart.toX(drag));
  });

  plot.addEventListener("pointermove", (event) => {
    moveCursorTo(chart, chart.toX(inPlot(local(event))));
    if (drag !== null) requestAnimationFrame(() => drag !== null && select(drag, inPlot(local(event))));
  });

  const release = (event) => {
    const from = drag;
    drag = null;
    select(0, 0);
    if (from === null || event.type === "pointercancel") return;
    const to = inPlot(local(event));
    if (Math.abs(to - from) < DRAG_PX) return;
    shared.show(...[chart.toX(from), chart.toX(to)].sort((a, b) => a - b));
  };
  plot.addEventListener("pointerup", release);
  plot.addEventListener("pointercancel", release);
  plot.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && drag === null) shared.set({ cursor: null });
  });
  plot.addEventListener("dblclick", () => shared.set({ range: null }));

  // A page full of charts must scroll under the wheel: it zooms with Ctrl, which is also what a
  // pinch on a touchpad sends.
  plot.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey) || (event.deltaY > 0 && shared.range === null)) return;
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY;
    shared.zoom(Math.exp(Math.min(Math.max(pixels, -200), 200) * 0.0025), chart.toX(inPlot(local(event))));
  }, { passive: false });

  plot.addEventListener("keydown", (event) => onKey(chart, event));
  plot.addEventListener("blur", () => shared.set({ cursor: null }));
}

// The cursor snaps to the nearest logged step of any run.
function moveCursorTo(chart, x) {
  let best = null;
  for (const { xs } of chart.drawn ?? []) {
    const step = xs[nearestPlace(xs, x)];
    if (best === null || Math.abs(step - x) < Math.abs(best - x)) best = step;
  }
  chart.shared.set({ cursor: best });
}

// By points of the longest curve; the window follows the cursor.
function stepCursor(chart, places) {
  const { shared } = chart;
  const longest = (chart.drawn ?? []).reduce((a, b) => (a && a.xs.length >= b.xs.length ? a : b), null);
  if (!longest) return;
  const { xs } = longest;
  const from = shared.cursor === null ? xs.length - (places < 0 ? 0 : 1) : nearestPlace(xs, shared.cursor);
  const cursor = xs[Math.min(Math.max(from + places, 0), xs.length - 1)];
  shared.set({ cursor });
  const [low, high] = shared.seen;
  const off = cursor < low ? cursor - low : cursor > high ? cursor - high : 0;
  if (off) shared.show(low + off, high + off);
}

function onKey(chart, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { shared } = chart;
  const [low, high] = shared.seen;
  const center = shared.cursor ?? (low + high) / 2;
  const [zoomIn, zoomOut] = [() => shared.zoom(0.6, center), () => shared.zoom(1 / 0.6, center)];
  const actions = {
    ArrowLeft: () => stepCursor(chart, -1),
    ArrowRight: () => stepCursor(chart, 1),
    "+": zoomIn, "=": zoomIn, "-": zoomOut, "−": zoomOut,
    0: () => shared.set({ range: null }),
    Escape: () => shared.set({ range: null, cursor: null }),
  };
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
}

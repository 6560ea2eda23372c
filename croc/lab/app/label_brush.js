// Strokes over a photograph, which win over its predicted mask.

import { sharesOf } from "./label_tiles.js";

const part = (id) => document.getElementById(id);

// `color`: of the next stroke; `paint` is called with a finished one.
export function makeBrush(stage, isOn, color, paint) {
  const canvas = make("canvas", { class: "strokes" });
  const ring = make("div", { class: "ring" });
  stage.append(canvas, ring);
  const context = canvas.getContext("2d");
  let stroke = null;

  const add = (event) => {
    const [x, y] = sharesOf(event, stage);
    const [lastX, lastY] = stroke.points.at(-1) ?? [Infinity, Infinity];
    if (Math.hypot(x - lastX, y - lastY) < stroke.radius / 4) return;
    stroke.points.push([x, y].map((share) => Math.round(1e4 * share) / 1e4));
    context.lineTo(x * canvas.width, y * canvas.height);
    context.stroke();
  };
  stage.addEventListener("pointerdown", (event) => {
    if (!isOn() || event.button !== 0) return;
    stage.setPointerCapture(event.pointerId);
    [canvas.width, canvas.height] = [stage.clientWidth, stage.clientHeight];
    stroke = { radius: Number(part("brush-size").value), points: [] };
    Object.assign(context, { lineCap: "round", lineJoin: "round", strokeStyle: color(),
      lineWidth: 2 * stroke.radius * canvas.width });
    context.beginPath();
    add(event);
    const [[x, y]] = stroke.points;
    context.lineTo(x * canvas.width, y * canvas.height); // a dot, if it does not move
    context.stroke();
  });
  stage.addEventListener("pointermove", (event) => {
    const [x, y] = sharesOf(event, stage);
    Object.assign(ring.style, { left: `${100 * x}%`, top: `${100 * y}%`,
      width: `${200 * part("brush-size").value}%` });
    if (stroke) add(event);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    stage.addEventListener(kind, () => {
      if (stroke) paint(stroke);
      stroke = null;
    });
  }
  return () => {
    if (!stroke) context.clearRect(0, 0, canvas.width, canvas.height);
  };
}

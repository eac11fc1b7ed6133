// Draws the confidence along an answer, with a slider that shows it step by step.

import { add } from "/page/diagram.js";

const WIDTH = 600, HEIGHT = 120, LEFT = 30, PAD = 6;

const $ = (id) => document.getElementById(id);
const y = (c) => PAD + (1 - c) * (HEIGHT - 2 * PAD);

// `points` are {at, c}: c is the confidence after `at` characters of the text; the last is at its end.
export function showTrace(points, text, threshold, ended) {
  $("trace").hidden = points.length < 2;
  if (points.length < 2) return;
  const longest = Math.max(text.length, 1);
  const x = (at) => LEFT + at / longest * (WIDTH - LEFT - PAD);
  $("trace-line").replaceChildren();
  const svg = add($("trace-line"), "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": true });
  for (const tick of [0, 0.5, 1]) {
    add(svg, "line", { class: "axis", x1: LEFT, x2: WIDTH - PAD, y1: y(tick), y2: y(tick) });
    add(svg, "text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, tick);
  }
  add(svg, "line", { class: "ideal", x1: LEFT, x2: WIDTH - PAD, y1: y(threshold), y2: y(threshold) });
  add(svg, "polyline", { class: "line", points: points.map(({ at, c }) => `${x(at)},${y(c)}`).join(" ") });
  const dot = add(svg, "circle", { class: "dot", r: 5 });
  const step = $("trace-step");
  step.max = points.length - 1;
  const showStep = () => {
    const { at, c } = points[step.value];
    dot.setAttribute("cx", x(at));
    dot.setAttribute("cy", y(c));
    const where = at === 0 ? "Before its first word" : ended && Number(step.value) === points.length - 1
      ? "At its end" : `After “${text.slice(Math.max(0, at - 24), at).trim()}”`;
    $("trace-value").textContent = `${where}: ${c.toFixed(2)}`;
    step.setAttribute("aria-valuetext", $("trace-value").textContent);
    const later = document.createElement("span");
    later.className = "later";
    later.textContent = text.slice(at);
    $("answer").replaceChildren(text.slice(0, at), later);
  };
  step.oninput = showStep;
  step.value = points.length - 1;
  showStep();
}

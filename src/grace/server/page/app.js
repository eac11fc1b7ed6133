// Asks the server of this page, and shows its replies. Text of a model is never set as markup.

import { draw } from "/page/diagram.js";
import { otherText, outcome, sessionText } from "/page/fallback.js";
import { covers, deciding, isAt, promiseText } from "/page/promise.js";
import { showTrace } from "/page/trace.js";

const $ = (id) => document.getElementById(id);
const state = {
  model: null, key: "", replies: [], current: null, running: null, moveThresholdLine: () => {},
};
const SIGNS = { accepted: "✓", abstained: "✗", forwarded: "→" };
const percent = (value) => value === null ? "none" : `${(value * 100).toFixed(1)}%`;
const formatted = (confidence) => confidence === null ? "none" : confidence.toFixed(2);
const budget = () => Number($("budget").value);
const isAccepted = (confidence) => confidence !== null && confidence >= threshold();

const sliderValue = () => Number($("threshold").value);
const runThreshold = () => state.model?.grace.threshold; // chosen by `grace threshold`, if any
const usesRunThreshold = () => covers(runThreshold(), budget(), $("strategy").value)
  && isAt(runThreshold(), sliderValue());
const threshold = () => usesRunThreshold() ? runThreshold().tau : sliderValue();

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function headers() {
  const key = state.key ? { Authorization: `Bearer ${state.key}` } : {};
  return { "Content-Type": "application/json", ...key };
}

async function connect() {
  const answer = await fetch("/v1/models", { headers: headers() });
  $("key-form").hidden = answer.status !== 401;
  if (answer.status === 401) {
    $("about").textContent = "This server wants an API key.";
    $("key").focus();
    return;
  }
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const { data: [model] } = await answer.json();
  state.model = model;
  document.title = `${model.id} · GrACE`;
  $("about").textContent = `${model.id}, trained on ${model.grace.task}`;
  $("choices-field").hidden = model.grace.kind !== "choice";
  showExamples(model.grace.examples);
  const { measured, strategy } = model.grace; // how its votes stop, if nobody says so
  if (strategy === "grace-vote") $("strategy").add(new Option("when its answer is probable", strategy));
  $("strategy").value = strategy;
  if ((runThreshold()?.tau ?? null) !== null) startAtRunThreshold(runThreshold());
  if (measured) showMeasured(measured);
  showThreshold();
  $("question").focus();
}

function start() {
  connect().catch((error) => { $("about").textContent = `No connection: ${error.message}`; });
}

// Sets the controls to what the guarantee of the run's threshold covers.
function startAtRunThreshold({ budget: samples, tau }) {
  const budgets = [...$("budget").options].map((option) => Number(option.value));
  if (!budgets.includes(samples)) $("budget").add(new Option(samples));
  $("budget").value = samples;
  $("strategy").disabled = budget() === 1;
  $("threshold").value = tau;
}

function showExamples(examples) {
  $("examples").hidden = !examples.length;
  $("examples").replaceChildren("Try: ", ...examples.map(({ question, choices }) => {
    const button = element("button", "example", question);
    button.type = "button";
    button.addEventListener("click", () => {
      $("question").value = question;
      $("choices").value = choices.join("\n");
      $("ask").requestSubmit();
    });
    return button;
  }));
}

function showMeasured(measured) {
  $("measured").hidden = false;
  $("diagram").replaceChildren();
  state.moveThresholdLine = draw($("diagram"), measured.reliability);
  $("measured-text").textContent =
    `${measured.n} test answers on ${measured.task}: ${percent(measured.accuracy)} right, ECE `
    + `${percent(measured.ece)}, Brier ${percent(measured.brier)}, AUROC ${percent(measured.auroc)}. `
    + "A bar is the accuracy of the answers in one interval of confidence, darker where there are "
    + "more; on the dashed line, confidence is accuracy. The upright line is your threshold.";
}

function showThreshold() {
  $("threshold-value").textContent = threshold().toFixed(2);
  $("promise").textContent = promiseText(runThreshold(), usesRunThreshold());
  $("gauge-mark").style.left = `calc(${threshold() * 100}% - 1px)`;
  state.moveThresholdLine(threshold());
  showOutlook();
  showSession();
  if (state.current) showVerdict(state.current);
}

// Says how many of the run's test answers would be accepted, and how many of those were right.
function showOutlook() {
  const bins = state.model?.grace.measured?.reliability ?? [];
  const above = bins.filter((bin) => bin.n && bin.low >= threshold() - 1e-9);
  const all = bins.reduce((sum, bin) => sum + bin.n, 0);
  const count = above.reduce((sum, bin) => sum + bin.n, 0);
  const right = above.reduce((sum, bin) => sum + bin.n * bin.accuracy, 0);
  if (!all) return;
  $("outlook").textContent = count
    ? `Of the run's test answers, ${percent(count / all)} had a confidence of ${above[0].low} or more, `
      + `and ${percent(right / count)} of those were right.`
    : "No test answer of the run was in an interval as sure as that.";
}

function showSession() {
  const outcomes = state.replies.map((row) => outcome(row, isAccepted(row.confidence)));
  $("session").hidden = !state.replies.length;
  $("session-counts").textContent = sessionText(outcomes);
  $("session").tBodies[0].replaceChildren(...state.replies.map((row, number) => {
    const line = element("tr");
    line.append(
      element("td", "", row.question), element("td", "", row.text || "no answer"),
      element("td", "number", formatted(row.confidence)),
      element("td", outcomes[number], `${SIGNS[outcomes[number]]} ${outcomes[number]}`),
    );
    return line;
  }));
}

function showFields(fields) {
  $("fields").hidden = !fields;
  $("fields").tBodies[0].replaceChildren(...Object.entries(fields ?? {}).map(([name, field]) => {
    const line = element("tr");
    line.append(element("td", "", name), element("td", "", JSON.stringify(field.value)),
      element("td", "number", formatted(field.confidence)));
    return line;
  }));
}

function showVerdict({
  text, trace, kind, confidence, reason, calibrated, promise, note, done, fields, other,
}) {
  $("answer").textContent = text || (done ? "No answer was found in any sample." : "");
  showTrace(trace, text, threshold(), done && confidence !== null);
  $("gauge-fill").style.width = `${(confidence ?? 0) * 100}%`;
  const accepted = isAccepted(confidence);
  $("result").classList.toggle("unsure", !accepted);
  showFields(fields);
  if (!done) {
    $("verdict").textContent = note;
    return;
  }
  const missing = reason === "length" ? "the answer was cut before its end" : "no answer was found";
  const judgement = other || (confidence === null ? `No confidence: ${missing}.`
    : `${kind} ${formatted(confidence)}: ${accepted ? "accepted" : "abstained, below the threshold"}.`);
  const warning = calibrated === false && confidence !== null
    ? " The model was not trained on this prompt, so its confidence is not calibrated here." : "";
  const guarantee = promise ? ` Promised: ${promise}.` : "";
  $("verdict").textContent = `${judgement} ${note}${warning}${guarantee}`;
}

function showVote(votes, leading) {
  const { vote } = votes[votes.length - 1];
  const line = element("li");
  const fill = element("span", "fill");
  fill.style.width = `${(vote.confidence ?? 0) * 100}%`;
  line.append(fill, element("span", "sample-text", vote.text || "…"),
    element("span", "number", formatted(vote.confidence)));
  $("samples").append(line);
  const sums = new Map();
  for (const { vote: { answer, confidence } } of votes) {
    if (answer === null) continue;
    const [count, sum] = sums.get(answer) ?? [0, 0];
    sums.set(answer, [count + 1, sum + (confidence ?? 0)]);
  }
  const most = Math.max(...[...sums.values()].map(([, sum]) => sum), 1e-12);
  const ranked = [...sums].sort((a, b) => b[1][1] - a[1][1]);
  $("tally").replaceChildren(...ranked.map(([answer, [count, sum]]) => {
    const row = element("li", answer === leading ? "leading" : "");
    const bar = element("span", "fill");
    bar.style.width = `${sum / most * 100}%`;
    row.append(bar, element("span", "sample-text", answer + (answer === leading ? " (leading)" : "")),
      element("span", "number", `${count} ×, sum ${sum.toFixed(2)}`));
    return row;
  }));
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const parts = waiting.split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function request(question) {
  const choices = $("choices").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const voting = budget() > 1 ? { strategy: $("strategy").value } : {};
  const stops = budget() > 1 && $("strategy").value === "es";
  if (stops && !usesRunThreshold()) voting.threshold = threshold(); // else the server uses the run's
  return {
    model: state.model.id, stream: true, messages: [{ role: "user", content: question }],
    grace: { budget: budget(), ...voting, ...($("choices-field").hidden ? {} : { choices }) },
  };
}

async function ask(question) {
  const reply = state.current = {
    question, text: "", trace: [], kind: "Confidence", confidence: null, note: "Asking…",
    done: false, threshold: threshold(),
  };
  const votes = [];
  $("result").hidden = false;
  $("samples-part").hidden = $("budget").value === "1";
  $("samples").replaceChildren();
  $("tally").replaceChildren();
  showVerdict(reply);
  const response = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(request(question)),
    signal: state.running.signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      const c = choice.finish_reason ? choice.confidence : choice.confidence_so_far;
      if ((c ?? null) !== null) reply.trace.push({ at: reply.text.length, c });
      reply.text += choice.delta.content ?? "";
      if (choice.finish_reason) {
        reply.confidence = choice.confidence;
        reply.reason = choice.finish_reason;
        reply.calibrated = choice.calibrated;
        reply.fields = choice.fields;
      }
    }
    if (event.grace?.threshold === reply.threshold && !event.grace.abstains) {
      reply.promise = event.grace.promise;
    }
    reply.other = otherText(event.grace) || reply.other;
    if (event.grace?.vote) {
      votes.push(event.grace);
      reply.note = `${votes.length} samples so far.`;
      showVote(votes, event.grace.leading);
    } else if (event.grace?.samples) {
      reply.confidence = deciding(event.grace, reply.confidence);
      if (event.grace.strategy === "es") reply.kind = "Confidence of its surest sample";
      reply.note = `It took ${event.grace.samples} of at most ${event.grace.budget} samples.`;
    }
    showVerdict(reply);
  }
  if (reply.note === "Asking…") reply.note = "";
  reply.done = true;
  state.replies.unshift(reply);
  showVerdict(reply);
  showSession();
  $("announce").textContent = `${reply.text}. ${$("verdict").textContent}`;
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (state.running || !state.model) return;
  state.running = new AbortController();
  $("send").disabled = true;
  $("stop").hidden = false;
  try {
    await ask($("question").value);
  } catch (error) {
    const stopped = error.name === "AbortError";
    $("verdict").textContent = stopped ? "Stopped." : `Failed: ${error.message}`;
    $("announce").textContent = $("verdict").textContent;
    state.current = null;
  }
  state.running = null;
  $("send").disabled = false;
  $("stop").hidden = true;
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => state.running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") state.running?.abort();
});
$("threshold").addEventListener("input", showThreshold);
$("budget").addEventListener("change", () => {
  $("strategy").disabled = budget() === 1;
  showThreshold();
});
$("strategy").addEventListener("change", showThreshold);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = $("key").value;
  start();
});

start();

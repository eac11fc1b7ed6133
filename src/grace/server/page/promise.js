// Where the run's own threshold keeps its promise: as `grace.model.rules` decides it on the server.

const ANSWER_TEMPERATURE = 0, VOTE_TEMPERATURE = 0.8; // the server's own; the page names none

// Whether what the threshold promises is what is asked with this budget and strategy.
export function holds(chosen, budget, strategy) {
  if (!chosen || chosen.tau === null || chosen.budget !== budget) return false;
  const answers = chosen.mode === "answer";
  if (answers !== (budget === 1) || !(answers || strategy === "es")) return false;
  return chosen.temperature === (answers ? ANSWER_TEMPERATURE : VOTE_TEMPERATURE);
}

// Whether a slider with steps of 0.01 stands at the run's threshold, which may lie between two.
export const isAt = (chosen, value) => Math.abs(value - chosen.tau) <= 0.005;

// What the page says of the run's threshold; `kept`: it is the one in use, and its promise holds.
export function told(chosen, kept) {
  if (!chosen) return "";
  if (chosen.tau === null) return `The run has no threshold: ${chosen.promise}`;
  if (kept) return `The run's own threshold: ${chosen.promise}`;
  const kind = chosen.mode === "answer" ? "single answers"
    : `votes of at most ${chosen.budget} samples that stop when one is sure`;
  return `Nothing is promised here: the run's own threshold is ${chosen.tau}, for ${kind} at `
    + `temperature ${chosen.temperature}.`;
}

// The guarantee of the run's own threshold; `grace.model.rules` decides the same on the server.

const ANSWER_TEMPERATURE = 0, VOTE_TEMPERATURE = 0.8; // the defaults of the server

// Returns whether the guarantee of a threshold covers requests with this budget and strategy.
export function covers(threshold, budget, strategy) {
  if (!threshold || threshold.tau === null || threshold.budget !== budget) return false;
  const single = threshold.mode === "answer";
  const rule = threshold.weights?.length ? "grace-vote" : "es";
  if (single !== (budget === 1) || !(single || strategy === rule)) return false;
  return threshold.temperature === (single ? ANSWER_TEMPERATURE : VOTE_TEMPERATURE);
}

// Returns whether a slider is as close to a threshold as its steps of 0.01 allow.
export const isAt = (threshold, value) => Math.abs(value - threshold.tau) <= 0.005 + 1e-9;

// Returns the confidence that is held against the threshold, given the result of a vote and the
// mean for its answer: under early stopping one sure sample is enough.
export function deciding({ strategy, answer, votes }, mean) {
  if (strategy !== "es" || mean === null) return mean;
  const agreeing = votes.filter((vote) => vote.answer === answer);
  return Math.max(...agreeing.map((vote) => vote.confidence ?? 0));
}

// Returns the sentence about the run's threshold; `covered`: it is in use, and its guarantee holds.
export function promiseText(threshold, covered) {
  if (!threshold) return "";
  if (threshold.tau === null) return `The run has no threshold: ${threshold.promise}`;
  if (covered) return `The run's own threshold: ${threshold.promise}`;
  const kind = threshold.mode === "answer" ? "single answers"
    : `votes of at most ${threshold.budget} samples that stop when one is sure`;
  return `Nothing is promised here: the run's own threshold is ${threshold.tau}, for ${kind} at `
    + `temperature ${threshold.temperature}.`;
}

// An answer in the page of a chat, and what can be told of its steps: each is kept with its elements.
const TAGS = { accepted: "i", correction: "b", bonus: "u", plain: "span", forced: "em" };
const ENDS = { length: "stopped at the most tokens", stopped: "stopped" };
// As display/terminal.py has them: control characters, marks of direction, other ends of lines, halves of characters.
const UNSAFE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]/gu;

/** The text with signs in the place of what would act on the page's text. */
function safe(text) {
  return text.replace(UNSAFE, (char) => {
    const code = char.codePointAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : "\ufffd";
  });
}

function make(tag, text, kind = "") {
  const element = document.createElement(tag);
  element.textContent = safe(text);
  element.className = kind;
  return element;
}

/** The drafted tokens that were not accepted, with what became of them: steps.py says the same of a recording. */
function lostTokens(step) {
  const parents = step.parents ?? step.drafted.map((_, node) => node - 1);
  const path = step.path ?? step.drafted.slice(0, step.accepted).map((_, node) => node);
  const untested = step.tokens.at(-1)?.origin === "accepted" ? path.at(-1) : undefined; // where the answer ended
  const fates = [];
  parents.forEach((parent, node) => {
    if (path.includes(node)) return;
    const unused = parent === untested || path.some((other) => parents[other] === parent && other < node);
    if (fates[parent]) fates[node] = fates[parent] === "not used" ? "not used" : "dropped with it";
    else fates[node] = unused ? "not used" : "rejected";
  });
  const known = fates.filter(Boolean);
  const texts = step.rejected_text;
  return known.slice(Math.max(known.length - texts.length, 0)).map((fate, n) => ({ text: safe(texts[n]) || "\u25af", fate }));
}

/** One answer in the page, to which steps are added; what stands is never drawn again. */
class Answer {
  constructor(drafts) {
    this.place = make("div", "", "answer writing");
    this.place.tabIndex = 0;
    this.place.role = "group";
    this.place.ariaLabel = "Answer; the arrow keys go through its passes";
    this.place.steps = this.steps = [];
    this.stopper = new AbortController();
    this.line = this.timings = null;
    this.text = this.reason = this.lineText = "";
    this.drafts = drafts;
    this.tokens = this.drafted = this.kept = this.bars = 0;
  }

  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    let content = choice?.delta?.content ?? "";
    this.text += content;
    this.reason = choice?.finish_reason ?? this.reason;
    this.timings = chunk.timings ?? this.timings;
    if (chunk.step) {
      const whole = chunk.step.tokens.map((token) => token.text).join("");
      this.takeStep(chunk.step, content.startsWith(whole));
      if (content.startsWith(whole)) content = content.slice(whole.length);
    }
    this.write("span", content);
  }

  /** shown: the tokens are what the chunk adds to the answer. */
  takeStep(step, shown) {
    step.parts = [];
    this.steps.push(step);
    this.tokens += step.tokens.length;
    this.drafted += step.drafted.length;
    this.kept += step.accepted;
    if (!shown) return;
    const own = step.tokens.findIndex((token) => token.origin !== "accepted");
    const kept = own < 0 ? step.tokens.length : own;
    for (const token of step.tokens.slice(0, kept)) this.write(TAGS[token.origin], token.text, step);
    for (const { text } of lostTokens(step)) this.write("del", text.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5"), step);
    for (const token of step.tokens.slice(kept)) this.write(TAGS[token.origin] ?? "span", token.text, step);
  }

  /** Each line is a block of its own: the browser lays out the last one only. */
  write(tag, text, step = null) {
    if (!text) return;
    for (const piece of text.split(/(?<=\n)/)) {
      if (!this.line) this.place.append((this.line = make("div", "", this.code ? "code" : "")));
      const part = make(tag, piece);
      if (tag === "u") underline(part);
      if (step) step.parts.push(part);
      part.step = step;
      this.line.append(part);
      if (tag !== "del") this.lineText += piece;
      if (piece.endsWith("\n")) this.endLine();
    }
  }

  endLine() {
    if (/^\s*```/.test(this.lineText)) {
      this.code = !this.code;
      this.line.className = "code fence";
    }
    this.line = null;
    this.lineText = "";
  }

  /** Tokens per second of the steps from one on, by the server's clock. */
  speed(from) {
    const [first, ...rest] = this.steps.slice(from);
    const seconds = rest.length ? rest.at(-1).at - first.at : 0;
    return seconds > 0 ? rest.reduce((sum, step) => sum + step.tokens.length, 0) / seconds : null;
  }

  get perPass() {
    const rest = this.steps.filter((step) => step.index > 0).length;
    return rest ? (this.tokens - 1) / rest : null;
  }

  get summary() {
    const { predicted_per_second: speed = this.speed(0), draft_n: drafted = this.drafted } = this.timings ?? {};
    const kept = this.timings?.draft_n_accepted ?? this.kept;
    const parts = speed ? [`${number(speed)} tokens/s`] : [];
    if (drafted) parts.push(`${percent(kept / drafted)} of ${drafted.toLocaleString("en")} drafted tokens kept`);
    else parts.push(this.drafts ? "nothing was drafted" : "without drafts");
    if (drafted && this.perPass) parts.push(`${number(this.perPass)} tokens a pass`);
    return [...parts, ...(ENDS[this.reason] ? [ENDS[this.reason]] : [])].join("; ");
  }
}

/** Underline the words of a bonus token alone: a line under an indent reads as underscores. */
function underline(part) {
  const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(part.textContent);
  part.replaceChildren(before, make("ins", words), after);
}

const number = (value) => value.toFixed(value < 100 ? 1 : 0);
const percent = (share) => `${Math.round(100 * share)}%`;

function headline(step) {
  if (!step.index) return "The first token comes with the prompt";
  const ms = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  const by = step.source ? ` by ${safe(step.source)}` : "";
  const drafted = step.drafted.length ? `${step.drafted.length} drafted${by}, ${step.accepted} kept` : "nothing drafted";
  return `Pass ${step.index}: ${drafted}; draft ${ms(step.draft_s)}, verify ${ms(step.verify_s)}`;
}

const tip = byId("tip");
let told = null; // the step that the tip is about, and by which of its elements it stands
let toldBy = null;

/** Show what became of a step's tokens, by one of its elements; of no step: hide it. */
function tell(step, near = null) {
  for (const part of told?.parts ?? []) part.classList.remove("here");
  [told, toldBy] = [step, near];
  tip.hidden = !step;
  if (!step) return;
  for (const part of step.parts) part.classList.add("here");
  byId("headline").textContent = headline(step);
  const chance = (name, value) => (value == null ? "" : `, ${name} ${value.toFixed(3)}`);
  const rows = step.tokens.map((token) => {
    const origin = token.origin === "plain" ? "the target alone" : token.origin;
    return row(TAGS[token.origin] ?? "span", safe(token.text) || "\u25af", origin + chance("p", token.p) + chance("q", token.q));
  });
  rows.splice(step.accepted, 0, ...lostTokens(step).map(({ text, fate }) => row("del", text, fate)));
  byId("rows").replaceChildren(...rows);
  placeTip(tip, near, near.getBoundingClientRect().x);
}


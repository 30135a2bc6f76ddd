// An answer in the chat page, and the tips of its steps.
const TAGS = { accepted: "i", correction: "b", bonus: "u", plain: "span", forced: "em" };
const ENDS = { length: "reached the token limit", stopped: "stopped" };
// Control characters, direction marks, other line ends, lone surrogates: the same as in display/terminal.py.
const UNSAFE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]/gu;

/** The text with control characters replaced by visible signs. */
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

/** The draft tokens that were not accepted, and why. display/steps.py does the same for a recording. */
function lostTokens(step) {
  const parents = step.parents ?? step.drafted.map((_, node) => node - 1);
  const path = step.path ?? step.drafted.slice(0, step.accepted).map((_, node) => node);
  const untested = step.tokens.at(-1)?.origin === "accepted" ? path.at(-1) : undefined; // the answer ended here
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

/** Which marks all answers show. */
const shown = { tokens: false, rejected: false };

/** One answer in the page. While it grows, only its last block is redrawn. */
class Answer {
  constructor(drafts = true, text = "") {
    this.place = make("div", "", "answer");
    this.place.role = "group";
    this.place.answer = this;
    this.stopper = new AbortController();
    this.steps = [];
    this.spans = []; // ranges of the text with one kind of token and step, and the rejected tokens before each
    this.timings = null;
    this.text = text;
    this.reason = "";
    this.drafts = drafts;
    this.thinks = false;
    this.tokens = this.drafted = this.kept = this.bars = 0;
    this.redraw();
  }

  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    const { reasoning_content: thought = "", content = "" } = choice?.delta ?? {};
    this.reason = choice?.finish_reason ?? this.reason;
    this.timings = chunk.timings ?? this.timings;
    if (thought || content) this.think(Boolean(thought));
    if (chunk.step) this.takeStep(chunk.step, thought || content);
    this.text += thought;
    if (content) this.think(false);
    this.text += content;
  }

  /** Begin or end the thoughts, which are kept with their marks in the text. */
  think(thinks) {
    if (thinks !== this.thinks) this.text += thinks ? "<think>\n" : "\n</think>\n\n";
    this.thinks = thinks;
  }

  takeStep(step, content) {
    const number = this.steps.push(step) - 1;
    this.tokens += step.tokens.length;
    this.drafted += step.drafted.length;
    this.kept += step.accepted;
    if (!content.startsWith(step.tokens.map((token) => token.text).join(""))) return; // a possible stop string is held back
    const own = step.tokens.findIndex((token) => token.origin !== "accepted");
    let at = this.text.length;
    const lost = lostTokens(step);
    const add = (tag, texts, lostBefore) => {
      if (!texts.length && !lostBefore.length) return;
      this.spans.push({ start: at, end: (at += texts.join("").length), tag, number, lost: lostBefore });
    };
    const texts = step.tokens.map((token) => token.text);
    const kept = own < 0 ? texts.length : own;
    add(TAGS.accepted, texts.slice(0, kept), []);
    add(TAGS[step.tokens[kept]?.origin] ?? "span", texts.slice(kept, kept + 1), lost);
    step.tokens.slice(kept + 1).forEach(({ text, origin }) => add(TAGS[origin] ?? "span", [text], []));
  }

  /** Draw what is new. Blocks before the last one are final. A block that begins in the unfinished last line isn't
      known yet: `2` may become a paragraph, or an item of the list before it. */
  draw() {
    const text = safe(this.text.slice(this.from));
    const blocks = markdown.parse(text, {});
    const from = this.from;
    const write = (part, at) => this.nodes(part, from + at);
    const end = linesOf(text).length - 1;
    const last = Math.max(0, blocks.findLastIndex(({ level, nesting, map }) => !level && nesting >= 0 && map?.[0] < end));
    this.seen = this.settledSeen;
    const fresh = elementsOf(text, blocks.slice(0, last), write);
    const settled = fresh.childElementCount;
    this.settledSeen = this.seen;
    fresh.append(elementsOf(text, blocks.slice(last), write));
    update(this.place, fresh, this.settled);
    if (settled) this.from += linesOf(text)[blocks[last].map[0]].at;
    this.settled += settled;
    const marked = this.drafted > 0 && shown.tokens;
    this.place.ariaLabel = marked ? "Answer; press the arrow keys to step through its passes" : "Answer";
    this.place.tabIndex = marked ? 0 : -1;
  }

  /** Draw all of it again: the marks have changed, or links may be defined after their use. */
  redraw() {
    this.from = this.settled = 0;
    this.settledSeen = -1;
    this.draw();
  }

  finish() {
    if (/^ {0,3}\[[^\]]+\]:/m.test(this.text)) this.redraw();
    else this.draw();
  }

  /** The nodes of a part of the text, which begins at offset `at`: one per token if tokens are shown. */
  nodes(text, at) {
    if (!shown.tokens || !this.drafted) return [text];
    const nodes = [];
    let done = at;
    for (let n = this.spanAt(at); this.spans[n]?.start < at + text.length; n++) {
      const span = this.spans[n];
      const [from, to] = [Math.max(span.start, done), Math.min(span.end, at + text.length)];
      if (from > done) nodes.push(text.slice(done - at, from - at));
      for (; this.seen < n; this.seen++) if (shown.rejected) nodes.push(...lostParts(this.spans[this.seen + 1]));
      if (to > from) nodes.push(tokenPart(span, text.slice(from - at, to - at)));
      done = Math.max(from, to);
    }
    if (done < at + text.length) nodes.push(text.slice(done - at));
    return nodes;
  }

  /** The index of the first span that ends after offset `at`. */
  spanAt(at) {
    let [low, high] = [0, this.spans.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle].end > at) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** The elements of a step's tokens. */
  parts(step) {
    return [...this.place.querySelectorAll(`[data-step="${this.steps.indexOf(step)}"]`)];
  }

  /** Tokens per second from step `from` on, by the server's clock. */
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
    if (drafted) parts.push(`${percent(kept / drafted)} of ${drafted.toLocaleString("en")} draft tokens accepted`);
    else parts.push(this.drafts ? "nothing was drafted" : "speculative decoding off");
    if (drafted && this.perPass) parts.push(`${number(this.perPass)} tokens per step`);
    return [...parts, ...(ENDS[this.reason] ? [ENDS[this.reason]] : [])].join("; ");
  }
}

function tokenPart({ tag, number }, text) {
  const part = make(tag, text, "token");
  if (tag === "u") underline(part);
  part.dataset.step = number;
  return part;
}

function lostParts({ lost, number }) {
  return lost.map(({ text }) => tokenPart({ tag: "del", number }, text.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5")));
}

/** Underline only the words of a bonus token: an underlined indent looks like underscores. */
function underline(part) {
  const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(part.textContent);
  part.replaceChildren(before, make("ins", words), after);
}

function button(text, kind, label = text) {
  const element = make("button", text, kind);
  element.type = "button";
  element.ariaLabel = label;
  return element;
}

const number = (value) => value.toFixed(value < 100 ? 1 : 0);
const percent = (share) => `${Math.round(100 * share)}%`;

function headline(step) {
  if (!step.index) return "First token, from the pass over the prompt";
  const ms = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  const by = step.source ? ` by ${safe(step.source)}` : "";
  const drafted = step.drafted.length ? `${step.drafted.length} drafted${by}, ${step.accepted} accepted` : "no draft";
  return `Pass ${step.index}: ${drafted}; draft ${ms(step.draft_s)}, verify ${ms(step.verify_s)}`;
}

const tip = byId("tip");
let shownStep = null; // the step that the tip describes, and its answer

/** Show the tip of a step near one of its elements; without a step, hide it. */
function showTip(answer, step = null, near = null) {
  for (const part of log.querySelectorAll(".here")) part.classList.remove("here");
  shownStep = step && { answer, step };
  tip.hidden = !step;
  if (!step) return;
  for (const part of answer.parts(step)) part.classList.add("here");
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

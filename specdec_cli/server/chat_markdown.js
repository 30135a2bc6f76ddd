// Markdown as elements, made one by one and never from an HTML string, so that the model's text can't inject markup.
const { MarkdownIt, hljs } = libraries;
const SURELY_HIGHLIGHTED = 5_000;
const SLOW_MS = 200;
const LONG_WORD = /\S{400}/; // some highlighting rules take quadratic time on such a word
const MAX_MATH_LINES = 100;
const MATH = /\\\([^]{1,2000}?\\\)|\\\[[^]{1,2000}?\\\]|\$\$[^]{1,2000}?\$\$|\$(?!\s)(?:\\.|[^$\\\n]){1,500}(?<!\s)\$(?!\d)/y;

const markdown = new MarkdownIt({ linkify: true }).disable(["image", "text_join"]);
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = (url) => /^(https?|mailto):/i.test(url);

let mostHighlighted = 30_000; // characters of a code block; lowered when highlighting takes too long

/** Leave LaTeX as it is, without reading it as Markdown. */
markdown.inline.ruler.before("escape", "math", (state, silent) => {
  MATH.lastIndex = state.pos;
  const [text] = MATH.exec(state.src) ?? [];
  if (!text) return false;
  if (!silent) state.push("math", "span", 0).content = text;
  state.pos += text.length;
  return true;
});

/** A block formula. It can't contain an empty line. */
markdown.block.ruler.before("fence", "math", (state, first, end, silent) => {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]).trim();
  const close = { "$$": "$$", "\\[": "\\]" }[line(first).slice(0, 2)];
  if (!close) return false;
  let last = first;
  while (!line(last).slice(last === first ? 2 : 0).endsWith(close)) {
    last += 1;
    if (last === end && last === state.lineMax && end - first < MAX_MATH_LINES) break; // still streaming
    if (last >= end || last - first > MAX_MATH_LINES || state.isEmpty(last)) return false;
  }
  if (silent) return true;
  state.line = Math.min(last + 1, end);
  const token = state.push("math_block", "div", 0);
  [token.map, token.content] = [[first, state.line], state.getLines(first, state.line, state.blkIndent, false)];
  return true;
}, { alt: ["paragraph", "reference", "blockquote", "list"] });

const THOUGHTS = /^<think>\n(?:[^]*?\n<\/think>\s*|[^]*$)/;
/** What a reasoning model thinks before it answers: the lines between <think> and </think>, folded. */
markdown.block.ruler.before("math", "thinking", (state, first, end) => {
  const line = (n) => state.src.slice(state.bMarks[n], state.eMarks[n]);
  if (state.level || line(first) !== "<think>") return false;
  let last = first + 1;
  while (last < end && line(last) !== "</think>") last += 1;
  state.push("thinking", "details", 1).map = [first, last];
  state.md.block.tokenize(state, first + 1, last);
  state.push("thinking", "details", -1);
  state.line = Math.min(last + 1, end);
  return true;
});

/** The blocks of a text as elements. write(text, at): returns the nodes for a part of it, found at offset `at`. */
function elementsOf(text, tokens, write) {
  const root = document.createDocumentFragment();
  const open = [root];
  const lines = linesOf(text);
  let first = 0; // the first line of the block
  let cell = 0; // where to look for the row's next cell
  for (const token of tokens) {
    if (token.map) first = token.map[0];
    if (token.type === "tr_open") cell = 0;
    if (token.hidden) continue;
    const place = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.type === "inline") {
      const inCell = /^T[HD]$/.test(place.nodeName);
      const written = token.content.replaceAll("|", "\\|");
      const from = inCell ? Math.max(lines[first].text.indexOf(written, cell), cell) : null;
      if (inCell) cell = from + written.length;
      appendInline(place, token, write, locator(lines, first, token.content, from));
    } else if (token.nesting > 0) {
      const element = blockOf(token);
      place.append(token.tag === "table" ? inFrame(element) : element);
      open.push(element);
    } else if (token.tag === "hr") place.append(make("hr", ""));
    else if (token.type === "math_block") {
      const block = make("div", "", "math");
      block.append(...write(token.content, locator(lines, first, token.content)(0)));
      place.append(block);
    } else place.append(codeBlock(token, write, locator(lines, first + (token.type === "fence"), token.content)));
  }
  for (const element of root.children) element.dir ||= "auto";
  return root;
}

/** The lines of a text, and where each begins. */
function linesOf(text) {
  let at = 0;
  return text.split("\n").map((line) => ({ text: line, at: (at += line.length + 1) - line.length - 1 }));
}

/** Maps offsets in a block's content to offsets in the text. Call it with increasing offsets. */
function locator(lines, first, content, from = null) {
  const shifts = linesOf(content).map(({ text, at }, n) => {
    const line = lines[first + n] ?? lines.at(-1);
    return { at, by: line.at + (from ?? Math.max(line.text.lastIndexOf(text), 0)) - at };
  });
  let n = 0;
  return (offset) => {
    while (shifts[n + 1]?.at <= offset) n += 1;
    return offset + shifts[n].by;
  };
}

/** An empty element for a block. Headings go below the page's own levels. */
function blockOf(token) {
  const level = /^h(\d)$/.exec(token.tag)?.[1];
  const element = make(level ? `h${Math.min(Number(level) + 2, 6)}` : token.tag, "");
  if (token.type === "thinking") {
    element.className = token.type;
    element.append(make("summary", "Thinking"));
  }
  if (token.attrGet("start")) element.start = token.attrGet("start");
  if (token.attrGet("style")) element.style.textAlign = token.attrGet("style").split(":")[1];
  return element;
}

/** A scrolling frame for what may be wider than the page; it takes the focus, so that the keyboard can scroll it. */
function inFrame(element) {
  const frame = make("div", "", "frame");
  frame.tabIndex = 0;
  frame.append(element);
  return frame;
}

function appendInline(place, { content, children }, write, locate) {
  const open = [place];
  let next = 0;
  for (const token of children) {
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) {
      const element = make(token.tag, "");
      if (token.tag === "a") Object.assign(element, { href: token.attrGet("href"), target: "_blank", rel: "noreferrer" });
      open.at(-1).append(element);
      open.push(element);
    } else {
      const text = token.tag === "br" ? "\n" : token.content;
      const written = token.type === "text_special" ? token.markup : text;
      const at = Math.max(content.indexOf(written, next), next);
      next = at + written.length;
      const nodes = write(text, locate(at));
      if (!token.tag || token.tag === "br") open.at(-1).append(...nodes);
      else {
        const element = make(token.tag, "", token.type === "math" ? "math" : "");
        element.append(...nodes);
        open.at(-1).append(element);
      }
    }
  }
}

function codeBlock({ info, content }, write, locate) {
  const block = make("div", "", "code");
  const bar = make("div", "", "bar");
  const code = make("code", "");
  const language = /^\S*/.exec(info)[0];
  code.append(...highlighted(content.replace(/\n$/, ""), language, write, locate));
  const frame = make("pre", "");
  frame.tabIndex = 0;
  frame.append(code);
  bar.append(make("span", language), button("Copy", "copy-code", "Copy this code"));
  block.append(bar, frame);
  block.dir = "ltr";
  return block;
}

function highlighted(code, language, write, locate) {
  const known = code.length <= mostHighlighted && !LONG_WORD.test(code) && hljs.getLanguage(language);
  const began = performance.now();
  const tree = known ? hljs.highlight(code, { language, ignoreIllegals: true })._emitter.root : { children: [code] };
  if (performance.now() - began > SLOW_MS) mostHighlighted = Math.max(SURELY_HIGHLIGHTED, code.length / 2);
  let at = 0;
  const nodesOf = (node) => node.children.flatMap((child) => {
    if (typeof child === "string") return write(child, locate((at += child.length) - child.length));
    const part = make("span", "", child.scope ? `hl-${child.scope.split(".")[0]}` : "");
    part.append(...nodesOf(child));
    return [part];
  });
  return nodesOf(tree);
}

/** Make a place's children, from index `from` on, equal to those of `fresh`, and keep those that are equal already. */
function update(place, fresh, from = 0) {
  const old = [...place.childNodes].slice(from);
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, n) => {
    const was = old[n];
    if (node.localName === "details") node.open = was?.open; // the reader may have opened it
    if (!was) place.append(node);
    else if (was.isEqualNode(node)) return;
    else if (was.cloneNode().isEqualNode(node.cloneNode()) && was.nodeType === Node.ELEMENT_NODE) update(was, node);
    else was.replaceWith(node);
  });
  for (const node of old.slice(wanted.length)) node.remove();
}

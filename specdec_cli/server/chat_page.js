// The chat page: buttons and keys, requests to the server, and the figures of the current answer.
const [log, input, send, status, passes] = ["log", "input", "send", "status", "passes"].map(byId);
const settings = ["system", "temperature", "most", "drafts", "rejected"].map(byId);
const welcome = byId("welcome");
const BARS = 60;
const FIGURES_MS = 100;
const SHARE = 4; // drawing takes at most 1/5 of the time

let conversation = { id: newId(), turns: [] };
let writing = null; // the answer that is streaming
let pair = null; // the names of the models
let key = ""; // the API key; stored nowhere else
let wanted = true; // whether to show the drafting of answers that have any
let follow = true; // whether to keep the end of the conversation in view
let lastTop = 0;
let frame = 0;
let drawAt = 0;
let figuresDrawn = 0;

async function ask(path, more = {}) {
  const headers = new Headers({ "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) });
  const response = await fetch(path, { headers, ...more }).catch(() => {
    throw new Error("Can't reach the server. Is specdec serve running?");
  });
  if (response.ok) return response;
  const said = await response.json().then(({ error }) => error.message, () => "");
  const wait = response.headers.get("Retry-After");
  const what = said || `The server returned status ${response.status}`;
  throw Object.assign(new Error(wait ? `${what}. Try again in ${wait} s.` : what), { status: response.status });
}

/** Yields the objects in a stream of server-sent events. */
async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) throw new Error("The connection was lost before the answer was complete.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((each) => each.startsWith("data:"))) {
      if (line.slice(5).trim() === "[DONE]") return;
      yield JSON.parse(line.slice(5));
    }
  }
}

async function loadPair() {
  const { data } = await (await ask("v1/models")).json();
  pair = data[0];
  const names = [["target", pair.target ?? pair.id], ["draft", pair.draft ?? "none"]];
  byId("pair").replaceChildren(...names.map(([what, name]) => {
    const part = make("span", `${what} `);
    part.append(make("strong", name));
    part.title = safe(`${what}: ${name}`);
    return part;
  }));
}

function complain(error = null) {
  byId("problem").textContent = safe(error?.message ?? "");
  byId("locked").hidden = error?.status !== 401;
  if (!byId("locked").hidden) byId("key").focus();
}

/** The body of a request, with the current settings. */
function request(turns) {
  const [system, temperature, most] = ["system", "temperature", "most"].map((id) => byId(id).value);
  const messages = turns.flatMap(({ asked, answer }) => [
    { role: "user", content: asked },
    { role: "assistant", content: answer.text.replace(THOUGHTS, "") },
  ]);
  return {
    model: pair.id,
    messages: [...(system.trim() ? [{ role: "system", content: system }] : []), ...messages.slice(0, -1)],
    stream: true,
    stream_options: { include_usage: true },
    return_steps: true,
    speculative: byId("drafts").checked,
    ...(temperature && { temperature: Number(temperature) }),
    ...(most && { max_tokens: Number(most) }),
  };
}

/** Add a question and its answer to the page. */
function addTurn(asked, answer, note = "") {
  const turn = { asked, answer, place: make("section", ""), note: make("p", note, "note soft") };
  const [question, actions] = [make("div", "", "question"), make("p", "", "actions")];
  question.append(make("article", asked), button("Edit", "edit", "Edit this question"));
  actions.append(button("Copy", "copy", "Copy this answer"), button("Regenerate", "again"));
  turn.place.append(make("h2", "You", "unseen"), question, answer.place, turn.note, actions);
  turn.place.turn = turn;
  log.append(turn.place);
  return turn;
}

/** Ask a question. It replaces the turns from `before` on; they come back if it fails. */
async function submit(asked, before = conversation.turns.length) {
  const wrong = byId("settings").querySelector(":invalid");
  if (wrong) byId("settings").open = true;
  if (writing || !asked.trim() || (wrong && !wrong.reportValidity())) return;
  document.querySelectorAll("#welcome, .failed").forEach((each) => each.remove());
  // A conversation has its own address, so a reload and the back button return to it.
  if (addressed() !== conversation.id) history.replaceState(null, "", `#${conversation.id}`);
  const current = conversation;
  const answer = new Answer(byId("drafts").checked);
  const replaced = current.turns.splice(before);
  for (const each of replaced) each.place.remove();
  const turn = addTurn(asked, answer);
  if (!replaced.length) input.value = "";
  complain();
  showTip(null);
  follow = true;
  writing = answer;
  answer.place.classList.add("writing");
  send.textContent = "Stop";
  const error = await write(answer, [...current.turns, turn]).then(() => null, (each) => each);
  const stopped = answer.stopper.signal.aborted;
  if (stopped) answer.reason = "stopped";
  const failed = error && !(stopped && answer.text);
  current.turns.push(...(failed ? replaced : [turn]));
  if (!failed && !current.removed) keep(current);
  answer.place.classList.remove("writing");
  if (writing === answer) writing = null;
  send.textContent = writing ? "Stop" : "Send";
  status.textContent = "";
  if (current !== conversation) return; // the user has opened another one
  answer.finish();
  if (failed && !stopped) complain(error);
  if (failed && replaced.length) {
    turn.place.remove();
    log.append(...replaced.map((each) => each.place));
  } else if (failed) {
    if (!answer.text) turn.place.remove();
    turn.place.className = "failed"; // not part of the conversation; the question goes back into the input field
    input.value ||= asked;
  }
  turn.note.textContent = failed ? "incomplete; not saved" : answer.summary;
  status.replaceChildren(make("span", failed ? "" : `finished: ${answer.summary}`, "unseen"));
  if (answer.steps.length) drawFigures(answer);
  drawSoon();
}

/** Stream the answer from the server. Throws if the request fails. */
async function write(answer, turns) {
  status.textContent = "reading the prompt";
  if (!pair) await loadPair();
  const more = { method: "POST", signal: answer.stopper.signal, body: JSON.stringify(request(turns)) };
  for await (const chunk of chunks(await ask("v1/chat/completions", more))) {
    answer.take(chunk);
    if (answer.text && status.textContent !== "writing") status.textContent = "writing";
    drawSoon();
  }
}

function newId() {
  return `${Date.now()}-${Math.random().toString(36).slice(2)}`;
}

/** The id of the conversation in the page's address. */
function addressed() {
  return location.hash.slice(1);
}

/** Save a conversation in this browser. */
function keep({ id, turns: all }) {
  const turns = all.map(({ asked, answer, note }) => ({
    asked,
    answered: answer.text,
    note: note.textContent || answer.summary,
  }));
  if (!kept.write({ id, turns })) complain(new Error("The browser couldn't save this conversation."));
  list();
}

const titleOf = ({ asked }) => safe(asked.trim().slice(0, 80));

/** List the saved conversations that hold the text in the search field. */
function list() {
  document.title = conversation.turns.length ? `${titleOf(conversation.turns[0])} \u2013 specdec` : "specdec chat";
  const all = kept.list();
  const sought = byId("search").value.toLowerCase();
  const holds = ({ turns }) => turns.some(({ asked, answered }) => `${asked}\n${answered}`.toLowerCase().includes(sought));
  byId("search").hidden = !all.length;
  byId("list").replaceChildren(...all.filter(holds).map(({ id, turns }) => {
    const item = make("li", "");
    const title = titleOf(turns[0]);
    const [open, remove] = [button(title, "open"), button("\u00d7", "remove", `Delete: ${title}`)];
    open.ariaCurrent = id === conversation.id;
    open.addEventListener("click", () => go(id));
    remove.addEventListener("click", () => {
      if (remove.textContent !== "Delete") return remove.replaceChildren("Delete"); // the first click asks for confirmation
      kept.remove(id);
      if (id === conversation.id) {
        conversation.removed = true; // an answer that is being written doesn't save it again
        go();
      }
      list();
    });
    item.append(open, remove);
    return item;
  }));
}

/** Go to a saved conversation or a new one. */
function go(id = "") {
  if (addressed() !== id) history.pushState(null, "", `#${id}`);
  show();
}

/** Show the conversation in the page's address; if there is none, start a new one. */
function show() {
  openMenu(false);
  if (addressed() === conversation.id) return;
  writing?.stopper.abort();
  writing = null;
  send.textContent = "Send";
  const { id, turns } = kept.read(addressed()) ?? { id: newId(), turns: [] };
  log.replaceChildren(...(turns.length ? [] : [welcome]));
  conversation = { id, turns: turns.map((each) => addTurn(each.asked, new Answer(true, each.answered), each.note)) };
  follow = turns.length > 0;
  if (!follow) log.scrollTop = 0;
  byId("figures").hidden = true;
  complain();
  showTip(null);
  list();
  drawSoon();
  input.focus();
}

/** Edit a question in place. Escape cancels. */
function edit(turn) {
  const [question, field] = [turn.place.querySelector(".question"), make("textarea", "")];
  field.value = turn.asked;
  field.ariaLabel = "Question";
  const [ask, cancel] = [button("Send", "first"), button("Cancel", "")];
  const form = make("div", "", "editing");
  form.append(field, cancel, ask);
  question.replaceWith(form);
  field.focus();
  const close = () => form.replaceWith(question);
  const again = () => {
    if (writing) return;
    submit(field.value, conversation.turns.indexOf(turn));
    if (writing) close(); // not if the question is empty or a setting is invalid
  };
  field.addEventListener("keydown", (event) => {
    if (isEnter(event)) again();
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  ask.addEventListener("click", again);
  cancel.addEventListener("click", close);
}

/** Copy a text. Without HTTPS there is no clipboard API, so fall back to a copy event. */
async function copy(text, from) {
  const asked = navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (!(await asked)) {
    const fill = (event) => {
      event.clipboardData.setData("text/plain", text);
      event.preventDefault();
    };
    document.addEventListener("copy", fill, { once: true });
    document.execCommand("copy");
    document.removeEventListener("copy", fill);
  }
  from.textContent = "Copied";
  setTimeout(() => (from.textContent = "Copy"), 1500);
}

/** The visible text of a code block, without rejected tokens. */
function codeOf(block) {
  const code = block.querySelector("code").cloneNode(true);
  code.querySelectorAll("del").forEach((each) => each.remove());
  return code.textContent;
}

async function unlock(event) {
  event.preventDefault();
  const tried = (key = byId("key").value);
  const said = (error) => tried === key && complain(error); // ignore the result for an older key
  await loadPair().then(said, said);
  if (byId("locked").hidden) input.focus();
}

function drawSoon() {
  frame ||= requestAnimationFrame((now) => {
    frame = 0;
    if (now < drawAt && writing) return drawSoon();
    writing?.draw();
    showDrafting();
    if (writing?.steps.length && now - figuresDrawn > FIGURES_MS) drawFigures(writing, now);
    if (follow) log.scrollTop = log.scrollHeight;
    showEnd();
    const took = performance.now() - now;
    drawAt = now + took + SHARE * took;
  });
}

/** Disable the switch if nothing was drafted. */
function showDrafting() {
  const answers = [...log.querySelectorAll(".answer")].map((place) => place.answer);
  const drafted = answers.some((answer) => answer.drafted);
  const wanting = [wanted && drafted, byId("rejected").checked];
  byId("tokens").disabled = !drafted;
  byId("tokens").checked = wanting[0];
  byId("legend").hidden = !wanting[0];
  if (wanting[0] === shown.tokens && wanting[1] === shown.rejected) return;
  [shown.tokens, shown.rejected] = wanting;
  showTip(null);
  for (const answer of answers) answer.redraw();
}

function drawFigures(answer, now = 0) {
  figuresDrawn = now;
  const { steps } = answer;
  const speed = answer === writing ? answer.speed(-BARS) : (answer.timings?.predicted_per_second ?? answer.speed(0));
  byId("speed").value = speed ? number(speed) : "\u2013";
  byId("kept").value = answer.drafted ? percent(answer.kept / answer.drafted) : "\u2013";
  byId("yield").value = answer.perPass ? number(answer.perPass) : "\u2013";
  if (!answer.bars) passes.replaceChildren();
  for (const step of steps.slice(Math.max(answer.bars, steps.length - BARS))) passes.append(bar(step));
  while (passes.children.length > BARS) passes.firstChild.remove();
  passes.style.setProperty("--most", Math.max(4, ...steps.slice(-BARS).map((step) => step.drafted.length)));
  answer.bars = steps.length;
  byId("figures").hidden = false;
}

function bar(step) {
  const whole = document.createElement("span");
  whole.title = headline(step);
  for (const [kind, tokens] of Object.entries({ lost: step.drafted.length - step.accepted, kept: step.accepted })) {
    const part = make("span", "", kind);
    part.style.setProperty("--tokens", tokens);
    whole.append(part);
  }
  return whole;
}

/** Show the tip of the next (direction 1) or previous (-1) visible step of an answer. */
function walk(answer, direction) {
  let at = shownStep?.answer === answer ? answer.steps.indexOf(shownStep.step) : -1;
  let near = null;
  do near = answer.steps[(at += direction)] && answer.parts(answer.steps[at]).find((part) => part.checkVisibility());
  while (!near && answer.steps[at]);
  if (!near) return;
  near.scrollIntoView({ block: "nearest" });
  showTip(answer, answer.steps[at], near);
  status.replaceChildren(make("span", [...tip.querySelectorAll("p, li")].map((part) => part.innerText).join("; "), "unseen"));
}

function openMenu(open) {
  document.body.classList.toggle("menu", open);
  byId("menu").ariaExpanded = open;
}

/** Whether a key sends. Keyboards on a screen have no Shift+Enter for a new line. */
function isEnter(event) {
  if (event.key !== "Enter" || event.isComposing) return false;
  return event.ctrlKey || event.metaKey || (!event.shiftKey && !matchMedia("(pointer: coarse)").matches);
}

const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 24;
const showEnd = () => (byId("end").hidden = atEnd() || welcome.isConnected);

log.addEventListener("pointerover", ({ target }) => {
  const token = target.closest(".token");
  const answer = token?.closest(".answer").answer;
  showTip(answer, answer?.steps[token.dataset.step], token);
});
log.addEventListener("pointerleave", () => showTip(null));
log.addEventListener("focusin", ({ target }) => target.answer && target.matches(":focus-visible") && walk(target.answer, 1));
log.addEventListener("focusout", () => showTip(null));
log.addEventListener("keydown", (event) => {
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!direction || !event.target.answer) return;
  event.preventDefault();
  walk(event.target.answer, direction);
});
log.addEventListener("click", ({ target }) => {
  const turn = target.closest("section")?.turn;
  const at = conversation.turns.indexOf(turn);
  if (target.matches("#examples button")) submit(target.textContent);
  else if (target.matches(".copy-code")) copy(codeOf(target.closest(".code")), target);
  else if (target.matches(".copy")) copy(safe(turn.answer.text.replace(THOUGHTS, "")), target);
  else if (target.matches(".again") && at >= 0) submit(turn.asked, at);
  else if (target.matches(".edit") && at >= 0 && !writing) edit(turn);
});
log.addEventListener("scroll", () => {
  follow = atEnd() || (follow && log.scrollTop >= lastTop);
  lastTop = log.scrollTop;
  showEnd();
  const near = shownStep?.answer.parts(shownStep.step)[0];
  showTip(near && shownStep.answer, near && shownStep.step, near); // the tip moves with its token
});
input.addEventListener("keydown", (event) => {
  if (!isEnter(event)) return;
  event.preventDefault();
  submit(input.value);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (byId("settings").open) byId("settings").open = false;
  else if (document.body.classList.contains("menu")) openMenu(false);
  else if (shownStep) showTip(null);
  else writing?.stopper.abort();
});
byId("locked").addEventListener("submit", unlock);
document.addEventListener("pointerdown", ({ target }) => {
  if (!byId("settings").contains(target)) byId("settings").open = false;
  if (!target.closest("#chats, #menu")) openMenu(false);
});
const valueName = (field) => (field.type === "checkbox" ? "checked" : "value");
for (const field of [...settings, byId("tokens")]) field.addEventListener("change", () => {
  if (field.id === "tokens") wanted = field.checked;
  kept.writeSettings({ wanted, ...Object.fromEntries(settings.map((each) => [each.id, each[valueName(each)]])) });
  drawSoon();
});
const restored = kept.readSettings();
wanted = restored.wanted ?? wanted;
for (const field of settings) field[valueName(field)] = restored[field.id] ?? field[valueName(field)];
byId("search").addEventListener("input", list);
byId("end").addEventListener("click", () => {
  follow = true;
  drawSoon();
});
byId("new").addEventListener("click", () => go());
byId("menu").addEventListener("click", () => openMenu(!document.body.classList.contains("menu")));
send.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus in the input field
send.addEventListener("click", () => (writing ? writing.stopper.abort() : submit(input.value)));
addEventListener("storage", list);
addEventListener("popstate", show);
addEventListener("pagehide", () => {
  if (!writing?.text) return;
  writing.reason = "stopped";
  keep({ ...conversation, turns: [...conversation.turns, log.lastElementChild.turn] });
});
show();
loadPair().catch(complain);

// The chat: what the buttons and keys do, what the server is asked, and the figures of the answer that it writes.
const [log, input, send, status, passes] = ["log", "input", "send", "status", "passes"].map(byId);
const welcome = byId("welcome");
const BARS = 60;
const FIGURES_MS = 100;
const SHARE = 4; // drawing an answer takes one part of the time, and leaves so many

let conversation = { id: "", turns: [] };
let writing = null; // the answer that is being written
let pair = null; // the names of the models
let key = ""; // of the server; kept nowhere else
let wanted = true; // whether the drafting is to be shown where something was drafted
let follow = true; // the end of the conversation stays in view
let lastTop = 0;
let frame = 0;
let drawAt = 0;
let figuresDrawn = 0;

async function ask(path, more = {}) {
  const headers = new Headers({ "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) });
  const response = await fetch(path, { headers, ...more }).catch(() => {
    throw new Error("The server cannot be reached. Is specdec serve running?");
  });
  if (response.ok) return response;
  const said = await response.json().then(({ error }) => error.message, () => "");
  const wait = response.headers.get("Retry-After");
  const what = said || `The server answered with status ${response.status}.`;
  throw Object.assign(new Error(wait ? `${what} Try again in ${wait} s.` : what), { status: response.status });
}

/** The objects of a stream of server-sent events. */
async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) throw new Error("The connection broke before the answer was whole.");
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

/** What the server is asked for, with the settings as they are. */
function request(turns) {
  const [system, temperature, most] = ["system", "temperature", "most"].map((id) => byId(id).value);
  const messages = turns.flatMap(({ asked, answer }) => [
    { role: "user", content: asked },
    { role: "assistant", content: answer.text },
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

/** A question and its answer in the page. */
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

/** Ask the server. Of the turns so far only the first ones go before; the others come back if this one fails. */
async function submit(asked, before = conversation.turns.length) {
  const wrong = byId("settings").querySelector(":invalid");
  if (wrong) byId("settings").open = true;
  if (writing || !asked.trim() || (wrong && !wrong.reportValidity())) return;
  document.querySelectorAll("#welcome, .failed").forEach((each) => each.remove());
  const current = conversation;
  const answer = new Answer(byId("drafts").checked);
  const replaced = current.turns.splice(before);
  for (const each of replaced) each.place.remove();
  const turn = addTurn(asked, answer);
  if (!replaced.length) input.value = "";
  complain();
  tell(null);
  follow = true;
  writing = answer;
  answer.place.classList.add("writing");
  send.textContent = "Stop";
  const error = await write(answer, [...current.turns, turn]).then(() => null, (each) => each);
  const stopped = answer.stopper.signal.aborted;
  if (stopped) answer.reason = "stopped";
  answer.place.classList.remove("writing");
  if (writing === answer) writing = null;
  send.textContent = writing ? "Stop" : "Send";
  status.textContent = "";
  if (current !== conversation) return; // another one is shown
  answer.finish();
  const failed = error && !(stopped && answer.text);
  if (failed && !stopped) complain(error);
  if (failed && replaced.length) {
    turn.place.remove();
    log.append(...replaced.map((each) => each.place));
    current.turns.push(...replaced);
  } else if (failed) {
    if (!answer.text) turn.place.remove();
    turn.place.className = "failed"; // no part of the conversation: what was typed is in its field again
    input.value ||= asked;
  } else {
    current.turns.push(turn);
    keep();
  }
  turn.note.textContent = failed ? "not finished, and not kept" : answer.summary;
  status.replaceChildren(make("span", failed ? "" : `finished: ${answer.summary}`, "unseen"));
  if (answer.steps.length) drawFigures(answer);
  drawSoon();
}

/** Let the server write the answer. Raises what went wrong. */
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

/** Keep the conversation in this browser. */
function keep() {
  conversation.id ||= `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  const turns = conversation.turns.map(({ asked, answer, note }) => ({
    asked,
    answered: answer.text,
    note: note.textContent || answer.summary,
  }));
  if (!kept.write({ id: conversation.id, turns })) complain(new Error("This browser has no room to keep the conversation."));
  list();
}

/** List the conversations that are kept. */
function list() {
  byId("list").replaceChildren(...kept.list().map(({ id, turns }) => {
    const item = make("li", "");
    const title = turns[0].asked.trim().slice(0, 80);
    const [open, remove] = [button(title, "open"), button("\u00d7", "remove", `Delete: ${title}`)];
    open.ariaCurrent = id === conversation.id;
    open.addEventListener("click", () => show(kept.read(id) ?? undefined));
    remove.addEventListener("click", () => {
      if (remove.textContent !== "Delete") return remove.replaceChildren("Delete"); // it asks once
      kept.remove(id);
      if (id === conversation.id) show();
      list();
    });
    item.append(open, remove);
    return item;
  }));
}

/** Show a conversation that was kept, or begin a new one. */
function show({ id, turns } = { id: "", turns: [] }) {
  writing?.stopper.abort();
  writing = null;
  send.textContent = "Send";
  log.replaceChildren(...(turns.length ? [] : [welcome]));
  conversation = { id, turns: turns.map((each) => addTurn(each.asked, new Answer(true, each.answered), each.note)) };
  follow = true;
  byId("figures").hidden = true;
  complain();
  tell(null);
  openMenu(false);
  list();
  drawSoon();
  input.focus();
}

/** Edit a question where it is. Escape leaves it as it was. */
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
    if (writing || !field.value.trim()) return;
    close();
    submit(field.value, conversation.turns.indexOf(turn));
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

/** Copy a text, also where the page did not come over HTTPS. */
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

/** The text of a code block as it is shown, but for rejected tokens. */
function codeOf(block) {
  const code = block.querySelector("code").cloneNode(true);
  code.querySelectorAll("del").forEach((each) => each.remove());
  return code.textContent;
}

async function unlock(event) {
  event.preventDefault();
  const tried = (key = byId("key").value);
  const said = (error) => tried === key && complain(error); // what comes of an older key comes too late
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
    const took = performance.now() - now;
    drawAt = now + took + SHARE * took;
  });
}

/** The switch is off, and cannot be used, where nothing was drafted. */
function showDrafting() {
  const answers = [...log.querySelectorAll(".answer")].map((place) => place.answer);
  const drafted = answers.some((answer) => answer.drafted);
  const wanting = [wanted && drafted, byId("rejected").checked];
  byId("tokens").disabled = !drafted;
  byId("tokens").checked = wanting[0];
  byId("legend").hidden = !wanting[0];
  if (wanting[0] === shown.tokens && wanting[1] === shown.rejected) return;
  [shown.tokens, shown.rejected] = wanting;
  tell(null);
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

/** Tell of the next step of an answer that can be seen, or of the one before. */
function walk(answer, way) {
  let at = told?.answer === answer ? answer.steps.indexOf(told.step) : -1;
  let near = null;
  do near = answer.steps[(at += way)] && answer.parts(answer.steps[at])[0];
  while (!near && answer.steps[at]);
  if (!near) return;
  near.scrollIntoView({ block: "nearest" });
  tell(answer, answer.steps[at], near);
  status.replaceChildren(make("span", [...tip.querySelectorAll("p, li")].map((part) => part.innerText).join("; "), "unseen"));
}

function openMenu(open) {
  document.body.classList.toggle("menu", open);
  byId("menu").ariaExpanded = open;
}

const isEnter = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

log.addEventListener("pointerover", ({ target }) => {
  const token = target.closest(".token");
  const answer = token?.closest(".answer").answer;
  tell(answer, answer?.steps[token.dataset.step], token);
});
log.addEventListener("pointerleave", () => tell(null));
log.addEventListener("focusin", ({ target }) => target.answer && target.matches(":focus-visible") && walk(target.answer, 1));
log.addEventListener("focusout", () => tell(null));
log.addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way || !event.target.answer) return;
  event.preventDefault();
  walk(event.target.answer, way);
});
log.addEventListener("click", ({ target }) => {
  const turn = target.closest("section")?.turn;
  const at = conversation.turns.indexOf(turn);
  if (target.matches("#examples button")) submit(target.textContent);
  else if (target.matches(".copy-code")) copy(codeOf(target.closest(".code")), target);
  else if (target.matches(".copy")) copy(safe(turn.answer.text), target);
  else if (target.matches(".again") && at >= 0) submit(turn.asked, at);
  else if (target.matches(".edit") && at >= 0 && !writing) edit(turn);
});
log.addEventListener("scroll", () => {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  follow = atEnd || (follow && log.scrollTop >= lastTop);
  lastTop = log.scrollTop;
  const near = told?.answer.parts(told.step)[0];
  tell(near && told.answer, near && told.step, near); // it goes with its token
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
  else if (told) tell(null);
  else writing?.stopper.abort();
});
byId("locked").addEventListener("submit", unlock);
document.addEventListener("pointerdown", ({ target }) => {
  if (!byId("settings").contains(target)) byId("settings").open = false;
  if (!target.closest("#chats, #menu")) openMenu(false);
});
byId("tokens").addEventListener("change", (event) => {
  wanted = event.target.checked;
  drawSoon();
});
byId("rejected").addEventListener("change", drawSoon);
byId("new").addEventListener("click", () => show());
byId("menu").addEventListener("click", () => openMenu(!document.body.classList.contains("menu")));
send.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the field
send.addEventListener("click", () => (writing ? writing.stopper.abort() : submit(input.value)));
addEventListener("storage", list);
list();
loadPair().catch(complain);

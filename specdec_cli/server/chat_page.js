// The chat: what the buttons and keys do, what the server is asked, and the figures of the answer that it writes.
const [log, input, send, status, passes, model] = ["log", "input", "send", "status", "passes", "model"].map(byId);
const welcome = byId("welcome");
const BARS = 60;
const FIGURES_MS = 100;

let messages = []; // the conversation, as the server reads it
let writing = null; // the answer that is being written
let key = ""; // of the server; kept nowhere else
let follow = true; // the end of the conversation stays in view
let lastTop = 0;
let frame = 0;
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

async function loadModels() {
  const { data } = await (await ask("v1/models")).json();
  model.replaceChildren(...data.map(({ id }) => new Option(safe(id), id)));
  model.disabled = data.length < 2;
}

function complain(error = null) {
  byId("problem").textContent = safe(error?.message ?? "");
  byId("locked").hidden = error?.status !== 401;
  if (!byId("locked").hidden) byId("key").focus();
}

/** What the server is asked for, with the settings as they are. */
function request(asked) {
  const [system, temperature, most] = ["system", "temperature", "most"].map((id) => byId(id).value);
  return {
    model: model.value,
    messages: [...(system.trim() ? [{ role: "system", content: system }] : []), ...asked],
    stream: true,
    stream_options: { include_usage: true },
    return_steps: true,
    speculative: byId("drafts").checked,
    ...(temperature && { temperature: Number(temperature) }),
    ...(most && { max_tokens: Number(most) }),
  };
}

async function submit() {
  const text = input.value;
  const wrong = byId("settings").querySelector(":invalid");
  if (wrong) byId("settings").open = true;
  if (writing || !text.trim() || (wrong && !wrong.reportValidity())) return;
  const turn = make("section", "");
  const answer = new Answer(byId("drafts").checked);
  turn.append(make("h2", "You", "unseen"), make("article", text), answer.place);
  document.querySelectorAll("#welcome, .failed").forEach((each) => each.remove());
  log.append(turn);
  input.value = "";
  complain();
  tell(null);
  follow = true;
  writing = answer;
  send.textContent = "Stop";
  const conversation = messages;
  const asked = [...conversation, { role: "user", content: text }];
  const error = await write(answer, asked).then(() => null, (each) => each);
  const stopped = answer.stopper.signal.aborted;
  if (stopped) answer.reason = "stopped";
  answer.place.classList.remove("writing");
  writing = null;
  send.textContent = "Send";
  status.textContent = "";
  if (conversation !== messages) return; // a new one has begun
  if (error && !(stopped && answer.text)) {
    if (!stopped) complain(error);
    if (!answer.text) turn.remove();
    turn.className = "failed"; // no part of the conversation: what was typed stands in its field again
    input.value ||= text;
  } else conversation.push(asked.at(-1), { role: "assistant", content: answer.text });
  const line = turn.className ? "not finished, and not kept" : answer.summary;
  turn.append(make("p", line, "note soft"));
  status.replaceChildren(turn.className ? "" : "finished", make("span", `: ${line}`, "unseen"));
  if (answer.steps.length) drawFigures(answer);
  drawSoon();
}

/** Let the server write the answer. Raises what went wrong. */
async function write(answer, asked) {
  status.textContent = "reading the prompt";
  if (!model.value) await loadModels();
  const more = { method: "POST", signal: answer.stopper.signal, body: JSON.stringify(request(asked)) };
  for await (const chunk of chunks(await ask("v1/chat/completions", more))) {
    answer.take(chunk);
    if (answer.text && status.textContent !== "writing") status.textContent = "writing";
    drawSoon();
  }
}

function startAnew() {
  writing?.stopper.abort();
  messages = [];
  log.replaceChildren(welcome);
  byId("figures").hidden = true;
  complain();
  tell(null);
  input.focus();
}

async function unlock(event) {
  event.preventDefault();
  const tried = (key = byId("key").value);
  const told = (error) => tried === key && complain(error); // what comes of an older key comes too late
  await loadModels().then(told, told);
  if (byId("locked").hidden) input.focus();
}

function drawSoon() {
  frame ||= requestAnimationFrame((now) => {
    frame = 0;
    if (follow) log.scrollTop = log.scrollHeight;
    if (writing?.steps.length && now - figuresDrawn > FIGURES_MS) drawFigures(writing, now);
  });
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

/** Tell of the next step of an answer, or of the one before. */
function walk(answer, way) {
  const steps = answer.steps.filter((step) => step.parts.some((part) => part.getClientRects().length));
  const at = steps.indexOf(told);
  const step = steps[Math.max(0, Math.min(at + way, steps.length - 1))];
  if (!step) return;
  const near = step.parts.find((part) => part.getClientRects().length);
  near.scrollIntoView({ block: "nearest" });
  tell(step, near);
  status.textContent = [...tip.querySelectorAll("p, li")].map((part) => part.innerText).join("; ");
}

log.addEventListener("pointerover", ({ target }) => {
  const token = target.closest(".answer > div > *");
  tell(token?.step ?? null, token);
});
log.addEventListener("pointerleave", () => tell(null));
log.addEventListener("focusin", ({ target }) => target.steps && target.matches(":focus-visible") && walk(target, 1));
log.addEventListener("focusout", () => tell(null));
log.addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way || !event.target.steps) return;
  event.preventDefault();
  walk(event.target, way);
});
log.addEventListener("scroll", () => {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  follow = atEnd || (follow && log.scrollTop >= lastTop);
  lastTop = log.scrollTop;
  tell(told, toldBy); // it goes with its token
});
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (byId("settings").open) byId("settings").open = false;
  else if (told) tell(null);
  else writing?.stopper.abort();
});
byId("locked").addEventListener("submit", unlock);
document.addEventListener("pointerdown", ({ target }) => {
  if (!byId("settings").contains(target)) byId("settings").open = false;
});
byId("struck").addEventListener("change", (event) => log.classList.toggle("struck", event.target.checked));
byId("new").addEventListener("click", startAnew);
send.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the field
send.addEventListener("click", () => (writing ? writing.stopper.abort() : submit()));
loadModels().catch(complain);

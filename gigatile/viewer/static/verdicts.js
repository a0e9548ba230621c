// The verdicts on a slide: a form, and what was saved, newest first.
const job = `/v1/jobs/${location.pathname.split("/").pop()}`;
const byId = (name) => document.getElementById(name);

function text(tag, content) {
  const element = document.createElement(tag);
  element.textContent = content;
  return element;
}

async function load() {
  const answer = await fetch(`${job}/verdicts`);
  const { verdicts } = await answer.json();
  byId("verdicts").replaceChildren(
    ...verdicts.map((verdict) => {
      const item = document.createElement("li");
      const time = new Date(verdict.created * 1000).toLocaleString();
      item.append(text("b", verdict.verdict), text("span", ` ${verdict.reader}, ${time}`));
      if (verdict.comment) item.append(text("p", verdict.comment));
      return item;
    }),
  );
  byId("verdicts").dataset.count = verdicts.length;
}

async function start() {
  const answer = await fetch(`${job}/view`);
  if (!answer.ok) return;
  const slide = await answer.json();
  const wrong = ["all are right", "some are missing", "some are wrong"];
  const outcomes = slide.range ? ["plausible", "implausible"] : slide.classes;
  const choices = ["", ...(slide.counts ? wrong : outcomes), "unsure", "not usable"];
  byId("verdict").append(...choices.map((name) => text("option", name)));
  byId("reader").value = localStorage.getItem("reader") ?? "";
  await load();
}

byId("verdict-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.submitter;
  if (button) button.disabled = true; // a second click would save it twice
  byId("saved").textContent = "";
  const names = ["verdict", "comment", "reader"];
  const fields = Object.fromEntries(names.map((name) => [name, byId(name).value]));
  let message = "Not saved: the server does not answer.";
  try {
    const answer = await fetch(`${job}/verdicts`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(fields),
    });
    const content = await answer.json();
    message = answer.ok ? "Saved." : `Not saved: ${content.error}`;
    if (answer.ok) {
      localStorage.setItem("reader", fields.reader);
      byId("verdict").value = "";
      byId("comment").value = "";
      await load();
    }
  } finally {
    byId("saved").textContent = message;
    if (button) button.disabled = false;
  }
});

start();

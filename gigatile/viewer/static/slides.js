// The list of slides: search, sorting, and the state of jobs that run.
const body = document.getElementById("slides");
const search = document.getElementById("search");
const compare = document.getElementById("compare");
let jobs = [];
let key = "created";
let descending = true;
const chosen = new Set(); // ids

async function load() {
  const all = [];
  let before = "";
  do {
    const answer = await fetch(`/v1/jobs${before === "" ? "" : `?before=${before}`}`);
    const page = await answer.json();
    all.push(...page.jobs);
    before = page.before ?? "";
  } while (before !== "" && all.length < 10000);
  const { slides } = await (await fetch("/v1/runs")).json();
  const latest = await (await fetch("/v1/verdicts")).json();
  const verdicts = new Map(latest.verdicts.map((verdict) => [verdict.job, verdict.verdict]));
  const ofJobs = all.map((job) => ({ ...job, by: `${job.model}, version ${job.version}` }));
  const ofRuns = slides.map((slide) => ({ ...slide, state: "done", by: `run ${slide.run}`, created: 0 }));
  jobs = [...ofJobs, ...ofRuns];
  for (const job of jobs) {
    job.predicted ??= "";
    job.verdict = verdicts.get(job.id) ?? "";
  }
  show();
  if (jobs.some((job) => job.state === "queued" || job.state === "running")) setTimeout(load, 2000);
}

function cell(row, content) {
  const td = row.insertCell();
  td.append(content);
}

function choice(job) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = chosen.has(job.id);
  box.setAttribute("aria-label", `Choose ${job.name}`);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(job.id);
    else chosen.delete(job.id);
    compare.disabled = chosen.size !== 2;
  });
  return box;
}

function show() {
  const wanted = search.value.toLowerCase();
  const shown = jobs.filter((job) => job.name.toLowerCase().includes(wanted));
  shown.sort((a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) * (descending ? -1 : 1));
  body.replaceChildren();
  for (const job of shown) {
    const row = body.insertRow();
    cell(row, job.state === "done" ? choice(job) : "");
    if (job.state === "done") {
      const link = document.createElement("a");
      link.href = `/viewer/slides/${job.id}`;
      link.textContent = job.name;
      cell(row, link);
    } else {
      cell(row, job.name);
    }
    cell(row, job.reason ? `${job.state}: ${job.reason}` : job.state);
    cell(row, job.by);
    cell(row, job.predicted);
    cell(row, job.verdict);
    cell(row, job.created ? new Date(job.created * 1000).toLocaleString() : "");
  }
  document.getElementById("count").textContent = `${shown.length} of ${jobs.length}`;
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    descending = key === button.dataset.key ? !descending : false;
    key = button.dataset.key;
    for (const other of document.querySelectorAll("th[aria-sort]")) {
      other.setAttribute("aria-sort", "none");
    }
    button.parentElement.setAttribute("aria-sort", descending ? "descending" : "ascending");
    show();
  });
}
compare.addEventListener("click", () => {
  const [left, right] = chosen;
  location.href = `/viewer/compare?left=${left}&right=${right}`;
});
search.addEventListener("input", show);
load();

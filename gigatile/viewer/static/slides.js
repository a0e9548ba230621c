// The list of slides: search, sorting, and the state of jobs that run.
const body = document.getElementById("slides");
const search = document.getElementById("search");
let jobs = [];
let key = "created";
let descending = true;

async function load() {
  const all = [];
  let before = "";
  do {
    const answer = await fetch(`/v1/jobs${before === "" ? "" : `?before=${before}`}`);
    const page = await answer.json();
    all.push(...page.jobs);
    before = page.before ?? "";
  } while (before !== "" && all.length < 10000);
  jobs = all;
  show();
  if (jobs.some((job) => job.state === "queued" || job.state === "running")) setTimeout(load, 2000);
}

function cell(row, content) {
  const td = row.insertCell();
  td.append(content);
}

function show() {
  const wanted = search.value.toLowerCase();
  const chosen = jobs.filter((job) => job.name.toLowerCase().includes(wanted));
  chosen.sort((a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) * (descending ? -1 : 1));
  body.replaceChildren();
  for (const job of chosen) {
    const row = body.insertRow();
    if (job.state === "done") {
      const link = document.createElement("a");
      link.href = `/viewer/slides/${job.id}`;
      link.textContent = job.name;
      cell(row, link);
    } else {
      cell(row, job.name);
    }
    cell(row, job.reason ? `${job.state}: ${job.reason}` : job.state);
    cell(row, `${job.model}, version ${job.version}`);
    cell(row, new Date(job.created * 1000).toLocaleString());
  }
  document.getElementById("count").textContent = `${chosen.length} of ${jobs.length}`;
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
search.addEventListener("input", show);
load();

// The list of runs: how many are selected for a comparison.

function countPicked() {
  const count = document.querySelectorAll('#compare input[name="run"]:checked').length;
  document.getElementById("picked").textContent = count ? `(${count})` : "";
  document.getElementById("compare-button").disabled = count < 2;
}

document.addEventListener("change", countPicked);
document.body.addEventListener("htmx:afterSettle", countPicked);
countPicked();

"use strict";
const examples = [...document.querySelectorAll(".example")];
const [arm, kind, words] = ["arm", "kind", "words"].map((id) => document.getElementById(id));
function filter() {
  const wanted = words.value.toLowerCase();
  let count = 0;
  for (const example of examples) {
    const fits =
      (!arm.value || example.dataset.arm === arm.value) &&
      (!kind.value || example.dataset.kind === kind.value) &&
      (!wanted || example.textContent.toLowerCase().includes(wanted));
    example.hidden = !fits;
    count += fits;
  }
  document.getElementById("count").textContent = `${count} of ${examples.length}`;
}
for (const control of [arm, kind, words]) control?.addEventListener("input", filter);
if (arm) filter();

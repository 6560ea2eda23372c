// A report's data become its parts.
const data = JSON.parse(document.getElementById("page-data").textContent);
const placeFor = (name) => document.querySelector(`[data-place="${name}"]`);
if (placeFor("curves")) buildCurves(placeFor("curves"), data);
if (placeFor("clusters")) buildClusters(placeFor("clusters"), data);
buildSearch(document.getElementById("search"), document.getElementById("search-found"));

// Objects of KEDA and of the Prometheus operator, as a JSON list on standard input, against the schemas of their own custom
// resource definitions. Prints what is wrong, one line for each object; the exit code is 1 then.
import { readFileSync } from "node:fs";
import { homedir } from "node:os";

const tools = `${process.env.FAIRLANE_CACHE ?? `${homedir()}/.cache/fairlane`}/tools`;
const load = (path) => import(`${tools}/crds/node_modules/@kubernetes-models/${path}`);
const { ScaledObject } = await load("keda/keda.sh/v1alpha1/ScaledObject.mjs");
const { PodMonitor } = await load("prometheus-operator/monitoring.coreos.com/v1/PodMonitor.js");
const { PrometheusRule } = await load("prometheus-operator/monitoring.coreos.com/v1/PrometheusRule.js");
const { ServiceMonitor } = await load("prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor.js");
const KINDS = { PodMonitor, PrometheusRule, ScaledObject, ServiceMonitor };

let wrong = 0;
for (const one of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    new KINDS[one.kind](one).validate();
  } catch (error) {
    wrong += 1;
    console.log(`${one.kind} ${one.metadata.name}: ${error.message.replaceAll("\n", "; ")}`);
  }
}
process.exitCode = wrong === 0 ? 0 : 1;

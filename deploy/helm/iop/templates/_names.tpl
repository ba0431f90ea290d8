{{- define "iop.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "iop.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "iop.labels" -}}
{{ include "iop.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The port of a HOST:PORT. */ -}}
{{- define "iop.port" -}}
{{ . | splitList ":" | last }}
{{- end -}}

{{- define "iop.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "iop.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* node.yaml: the values, and where the edge is. */ -}}
{{- define "iop.nodeConfig" -}}
{{- $service := printf "%s-edge-nodes:%v" (include "iop.name" .) .Values.edge.nodeService.port -}}
{{- $edge := dict "node" (dict "edge" (.Values.node.edge | default $service)) -}}
{{- toYaml (mustMergeOverwrite (deepCopy .Values.node.config) $edge) -}}
{{- end -}}

{{/*
Names do not follow the release's: the definitions are of the whole cluster, and so is what operator and agents do. A second release is
refused by helm, because the objects of this one are there.
*/}}

{{/* Labels by which pods are found: they never change. */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* An image, by the name of its program. */}}
{{- define "sluice.image" -}}
{{ printf "%s/%s:%s" .Values.images.registry .program (.Values.images.tag | default .Chart.AppVersion) }}
{{- end }}

{{/* What holds for the pods of both. */}}
{{- define "sluice.pod" -}}
enableServiceLinks: false
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Whether nodes of any class have the driver of resource claims. */}}
{{- define "sluice.dra" -}}
{{- range .Values.classes }}{{ if .dra }}yes{{ end }}{{ end }}
{{- end }}

{{/* The fence of a program that needs nothing of its host. */}}
{{- define "sluice.fence" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

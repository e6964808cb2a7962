{{- define "consort.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Of 63 characters of a label, a pod's name needs the ordinal's and a revision's. */}}
{{- define "consort.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "consort.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "consort.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The headless service, by which members are found. */}}
{{- define "consort.members" -}}
{{ include "consort.fullname" . }}-members
{{- end }}

{{- define "consort.members.host" -}}
{{ include "consort.members" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The labels that select the members. They never change. */}}
{{- define "consort.selector" -}}
app.kubernetes.io/name: {{ include "consort.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "consort.labels" -}}
{{ include "consort.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "consort.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "consort.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The container's image. A number in a file of values is a float for Helm, which would print 20260101 as 2.0260101e+07. */}}
{{- define "consort.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag }}
{{- if not (kindIs "string" $tag) }}
{{- $tag = printf "%d" (int64 $tag) }}
{{- end }}
{{- printf "%s:%s" .Values.image.repository $tag }}
{{- end }}

{{- define "consort.management" -}}
{{- default "Parallel" .Values.podManagementPolicy }}
{{- end }}

{{/* A probe of the server's port: HTTP, HTTPS, or only whether a program listens. */}}
{{- define "consort.probe" -}}
{{- $tls := .root.Values.tls -}}
{{- if .root.Values.probes.healthPort -}}
httpGet:
  path: {{ .path }}
  port: health
  scheme: HTTP
{{- else if and $tls.secretName $tls.clients.required -}}
tcpSocket: {port: hotrod}
{{- else -}}
httpGet:
  path: {{ .path }}
  port: hotrod
  scheme: {{ ternary "HTTPS" "HTTP" (ne $tls.secretName "") }}
{{- end }}
timeoutSeconds: {{ .root.Values.probes.timeoutSeconds }}
{{- end }}

{{- define "consort.families" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end }}

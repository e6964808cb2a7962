{{/* The values' affinity with the term of antiAffinity. */}}
{{- define "consort.affinity" -}}
{{- $affinity := deepCopy .Values.affinity }}
{{- if ne .Values.antiAffinity "none" }}
{{- $selector := dict "matchLabels" (fromYaml (include "consort.selector" .)) }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector }}
{{- $anti := default dict $affinity.podAntiAffinity }}
{{- if eq .Values.antiAffinity "required" }}
{{- $terms := default list $anti.requiredDuringSchedulingIgnoredDuringExecution }}
{{- $anti = set $anti "requiredDuringSchedulingIgnoredDuringExecution" (prepend $terms $term) }}
{{- else }}
{{- $terms := default list $anti.preferredDuringSchedulingIgnoredDuringExecution }}
{{- $weighted := dict "weight" 100 "podAffinityTerm" $term }}
{{- $anti = set $anti "preferredDuringSchedulingIgnoredDuringExecution" (prepend $terms $weighted) }}
{{- end }}
{{- $affinity = set $affinity "podAntiAffinity" $anti }}
{{- end }}
{{- if $affinity }}
{{- toYaml $affinity }}
{{- end }}
{{- end }}

{{/* The spread over zones, and constraints of the values. One without a selector selects the members. */}}
{{- define "consort.spread" -}}
{{- $selector := dict "matchLabels" (fromYaml (include "consort.selector" .)) }}
{{- $constraints := list }}
{{- with .Values.zoneSpread }}
{{- if .maxSkew }}
{{- $zones := dict "topologyKey" "topology.kubernetes.io/zone" "maxSkew" (int .maxSkew) }}
{{- $constraints = append $constraints (merge $zones (dict "whenUnsatisfiable" .whenUnsatisfiable "labelSelector" $selector)) }}
{{- end }}
{{- end }}
{{- range .Values.topologySpreadConstraints }}
{{- $constraint := deepCopy . }}
{{- if not (hasKey $constraint "labelSelector") }}
{{- $constraint = set $constraint "labelSelector" $selector }}
{{- end }}
{{- $constraints = append $constraints $constraint }}
{{- end }}
{{- if $constraints }}
{{- toYaml $constraints }}
{{- end }}
{{- end }}

{{- define "bdnfs.labels" -}}
app.kubernetes.io/name: bdnfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "bdnfs.selector" -}}
app.kubernetes.io/name: bdnfs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bdnfs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Makes integers of the whole numbers in a dictionary: Helm reads all numbers of a file as floats, and TOML tells them apart. */}}
{{- define "bdnfs.integers" -}}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}
{{- include "bdnfs.integers" $value }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
{{- if kindIs "map" . }}
{{- include "bdnfs.integers" . }}
{{- end }}
{{- end }}
{{- else if kindIs "float64" $value }}
{{- if eq (floor $value) $value }}
{{- $_ := set $ $key (int64 $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What a container is allowed that needs nothing: uid 0 only owns the sockets. */}}
{{- define "bdnfs.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The secrets for images, and where a pod runs, of the values: all, and those with its place. */}}
{{- define "bdnfs.placement" -}}
{{- with (index . 0).Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Files for a container, of the values: all, and those of the container. */}}
{{- define "bdnfs.files" -}}
{{- with (index . 0).Values.caCertificates }}
- {name: ca-certificates, mountPath: /etc/bdnfs-ca, readOnly: true}
{{- end }}
{{- with (index . 1).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

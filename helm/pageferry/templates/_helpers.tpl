{{- define "pageferry.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $default := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $default .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Takes (dict "root" $ "part" "agent"). */}}
{{- define "pageferry.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "pageferry.labels" -}}
{{ include "pageferry.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "pageferry.serviceAccount" -}}
{{- $default := ternary (include "pageferry.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end -}}

{{/* Takes (dict "root" $ "image" .Values.agent.image). A digest wins over a tag. */}}
{{- define "pageferry.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* Pods listen beyond loopback, so one of the two must be chosen. */}}
{{- define "pageferry.checkSecurity" -}}
{{- if and .Values.tls.enabled .Values.insecure -}}
{{- fail "tls.enabled and insecure are both true: choose one" -}}
{{- end -}}
{{- if not (or .Values.tls.enabled .Values.insecure) -}}
{{- fail "pods listen beyond loopback: set tls.enabled=true and tls.secretName, or insecure=true for clear text" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.secretName) -}}
{{- fail "tls.enabled needs tls.secretName: a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- end -}}

{{- define "pageferry.securityArgs" -}}
{{- if .Values.tls.enabled -}}
- --tls-cert=/etc/pageferry/tls/tls.crt
- --tls-key=/etc/pageferry/tls/tls.key
- --tls-ca=/etc/pageferry/tls/ca.crt
- --tls-client-auth=require
{{- else -}}
- --insecure
{{- end }}
- --log-format={{ .Values.log.format }}
- --log-level={{ .Values.log.level }}
{{- end -}}

{{- define "pageferry.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "pageferry.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Takes (dict "health" name "metrics" name). A pod that drains, or an agent whose cell a younger
one took, is not ready but lives: so liveness asks /healthz. A gRPC probe takes only a number. */}}
{{- define "pageferry.probes" -}}
startupProbe:
  grpc: {port: {{ .health }}}
  periodSeconds: 1
  failureThreshold: 60
readinessProbe:
  grpc: {port: {{ .health }}}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /healthz, port: {{ .metrics }}}
  periodSeconds: 10
  timeoutSeconds: 3
{{- end -}}

{{- define "pageferry.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "pmnet.name" -}}
{{- if contains "pmnet" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-pmnet" (.Release.Name | trunc 34 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "pmnet.fleet" -}}
{{ .Values.fleet | default .Release.Name }}
{{- end }}

{{- define "pmnet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that never change: what selectors use. (list . "device") */}}
{{- define "pmnet.selector" -}}
app.kubernetes.io/name: pmnet
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "pmnet.labels" -}}
{{ include "pmnet.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* Fewest copies that a front takes for an acknowledgement. Until the chain has formed it is all: a first session would keep the others out. */}}
{{- define "pmnet.frontCopies" -}}
{{- if .Values.devices.chainHasFormed -}}
{{ .Values.fronts.copies | default (max 1 (sub (int .Values.devices.copies) 1)) }}
{{- else -}}
{{ .Values.devices.copies }}
{{- end }}
{{- end }}

{{/* The keys of etcd in a section of pmnet's file. */}}
{{- define "pmnet.etcdKeys" -}}
fleet = {{ include "pmnet.fleet" . | quote }}
etcd = {{ join "," .Values.etcd.endpoints | quote }}
{{- with .Values.etcd.tlsSecret }}
etcd-ca = "/etc/pmnet/etcd/ca.crt"
{{- if $.Values.etcd.clientCertificate }}
etcd-cert = "/etc/pmnet/etcd/tls.crt"
etcd-key = "/etc/pmnet/etcd/tls.key"
{{- end }}
{{- end }}
{{- with .Values.etcd.user }}
etcd-user = {{ . | quote }}
etcd-password-file = "/etc/pmnet/etcd-password/password"
{{- end }}
{{- end }}

{{/* The key of a section. (list . "cluster") */}}
{{- define "pmnet.key" -}}
{{- if (index . 0).Values.keys.secret -}}
key = "/run/pmnet/{{ index . 1 }}.key"
{{- else -}}
insecure = true
{{- end }}
{{- end }}

{{- define "pmnet.statusAddress" -}}
http://0.0.0.0:9464
{{- end }}

{{/* What each pod has. (list . "device" values-of-it) */}}
{{- define "pmnet.pod" -}}
{{- $root := index . 0 }}{{- $of := index . 2 }}
automountServiceAccountToken: false
# Otherwise Kubernetes sets variables such as PMNET_DEVICE_PORT, and pmnet reads its flags from variables.
enableServiceLinks: false
terminationGracePeriodSeconds: 30
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "pmnet.container" -}}
{{- $root := index . 0 }}{{- $of := index . 2 -}}
image: {{ include "pmnet.image" $root | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml $of.resources | nindent 2 }}
{{- end }}

{{/* Another user than root reads a mounted secret by its group, and pmnet takes no key that a group can read. */}}
{{- define "pmnet.keyCopier" -}}
{{- $root := index . 0 }}
{{- if $root.Values.keys.secret }}
initContainers:
  - name: key
    {{- include "pmnet.container" . | nindent 4 }}
    args: [key, copy, /run/secrets/pmnet/{{ index . 3 }}.key, /run/pmnet/{{ index . 3 }}.key]
    volumeMounts:
      - {name: key, mountPath: /run/secrets/pmnet, readOnly: true}
      - {name: run, mountPath: /run/pmnet}
{{- end }}
{{- end }}

{{/* (list . "device" values-of-it "cluster") */}}
{{- define "pmnet.mounts" -}}
{{- $root := index . 0 -}}
- {name: config, mountPath: /etc/pmnet/config, readOnly: true}
{{- if $root.Values.keys.secret }}
- {name: run, mountPath: /run/pmnet, readOnly: true}
{{- end }}
{{- include "pmnet.etcdMounts" $root }}
{{- end }}

{{- define "pmnet.etcdMounts" -}}
{{- if .Values.etcd.tlsSecret }}
- {name: etcd, mountPath: /etc/pmnet/etcd, readOnly: true}
{{- end }}
{{- if .Values.etcd.user }}
- {name: etcd-password, mountPath: /etc/pmnet/etcd-password, readOnly: true}
{{- end }}
{{- end }}

{{- define "pmnet.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: {name: {{ include "pmnet.name" $root }}-{{ index . 1 }}}
{{- if $root.Values.keys.secret }}
- name: key
  secret:
    secretName: {{ $root.Values.keys.secret }}
    defaultMode: 0400
    items: [{key: {{ index . 3 }}.key, path: {{ index . 3 }}.key}]
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
{{- include "pmnet.etcdVolumes" $root }}
{{- end }}

{{- define "pmnet.etcdVolumes" -}}
{{- with .Values.etcd.tlsSecret }}
- name: etcd
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- if .Values.etcd.user }}
- name: etcd-password
  secret: {secretName: {{ .Values.etcd.passwordSecret }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{/* (dict "ready" "/readyz" "patience" 6) */}}
{{- define "pmnet.probes" -}}
# It waits for others as long as that takes, and is alive meanwhile.
startupProbe:
  httpGet: {path: /livez, port: status}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: status}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ .patience }}
readinessProbe:
  httpGet: {path: {{ .ready }}, port: status}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* (list . "device" whenUnsatisfiable zones) */}}
{{- define "pmnet.spread" -}}
{{- $root := index . 0 }}{{- $component := index . 1 -}}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ index $ 2 }}
    {{- if and (eq (index $ 2) "DoNotSchedule") (eq . "topology.kubernetes.io/zone") }}
    minDomains: {{ index $ 3 }}
    {{- end }}
    labelSelector:
      matchLabels: {{- include "pmnet.selector" (list $root $component) | nindent 8 }}
  {{- end }}
{{- end }}

{{/* Values that are each right and do not go together. A schema cannot say that. */}}
{{- define "pmnet.check" -}}
{{- $devices := .Values.devices }}
{{- if and (eq $devices.zoneSpread "required") (gt (int $devices.copies) (int $devices.zones)) }}
{{- fail (printf "devices.copies is %d and devices.zones is %d: with devices.zoneSpread: required each copy has a zone of its own, so one device would never be scheduled. Lower devices.copies, or set devices.zoneSpread: preferred and accept that the loss of one zone can take several copies." (int $devices.copies) (int $devices.zones)) }}
{{- end }}
{{- if and .Values.keys.secret .Values.keys.insecure }}
{{- fail "keys.secret and keys.insecure exclude each other: leave one of them out." }}
{{- end }}
{{- if not (or .Values.keys.secret .Values.keys.insecure) }}
{{- fail "keys.secret is empty: make a cluster key and a front key (pmnet key new, pmnet key front), put them into a secret as cluster.key and front.key, and name it. Or state with keys.insecure: true that every host which can send packets to the pods is trusted." }}
{{- end }}
{{- if gt (int .Values.fronts.copies) (int $devices.copies) }}
{{- fail (printf "fronts.copies is %d and devices.copies is %d: the fronts would refuse every acknowledgement. Lower fronts.copies." (int .Values.fronts.copies) (int $devices.copies)) }}
{{- end }}
{{- if and (eq .Values.fronts.access "password") (not .Values.fronts.passwordSecret) }}
{{- fail "fronts.access is password and fronts.passwordSecret is empty: name the secret that has it under the key `password`." }}
{{- end }}
{{- if and .Values.fronts.directPasswordSecret (not .Values.fronts.direct) }}
{{- fail "fronts.directPasswordSecret is the password for fronts.direct: give that too." }}
{{- end }}
{{- if and .Values.etcd.user (not .Values.etcd.passwordSecret) }}
{{- fail "etcd.user is given and etcd.passwordSecret is empty: name the secret that has it under the key `password`." }}
{{- end }}
{{- if and .Values.etcd.clientCertificate (not .Values.etcd.tlsSecret) }}
{{- fail "etcd.clientCertificate is true and etcd.tlsSecret is empty: name the secret that has ca.crt, tls.crt and tls.key." }}
{{- end }}
{{- range .Values.etcd.endpoints }}
{{- if and (hasPrefix "https://" .) (not $.Values.etcd.tlsSecret) }}
{{- fail (printf "etcd.endpoints has %s and etcd.tlsSecret is empty: name a secret with ca.crt." .) }}
{{- end }}
{{- if and $.Values.etcd.user (hasPrefix "http://" .) }}
{{- fail (printf "etcd.user is given and etcd.endpoints has %s: pmnet sends a password over TLS only. Use https://." .) }}
{{- end }}
{{- end }}
{{- range $value, $url := dict "store.url" .Values.store.url "fronts.direct" .Values.fronts.direct }}
{{- if regexMatch "://[^/]*:[^/]+@" $url }}
{{- fail (printf "%s has a password, which Helm would keep in its history: put it into a secret under the key `password` (store.passwordSecret, fronts.directPasswordSecret)." $value) }}
{{- end }}
{{- end }}
{{- if hasPrefix "packet:" .Values.store.url }}
{{- fail "store.url is a packet store, which is a file of one server: this chart runs servers without a volume. Name a Redis." }}
{{- end }}
{{- end }}

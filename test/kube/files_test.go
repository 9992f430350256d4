package kube

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/keyward/keyward/test/kube/apiserver"
)

// configuration holds the files that the servers read. $WORK is the working directory, $GROUP the control group of all pods.
var configuration = map[string]string{
	// restrict_oom_score_adj: a process without CAP_SYS_RESOURCE may not lower a score, as in many sandboxes and CI machines.
	"containerd.toml": `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "` + crSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + podImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$WORK/cni"
`,
	"cni/pod.conflist": `{"cniVersion": "0.4.0", "name": "pod", "plugins": [
  {"type": "bridge", "bridge": "cni-pods", "isGateway": true, "isDefaultGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podRange + `"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`,
	"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$GROUP
failSwapOn: false
containerRuntimeEndpoint: unix://` + crSocket + `
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
resolvConf: /etc/resolv.conf
clusterDNS: ["` + nodeIP + `"]
clusterDomain: cluster.local
`,
	"Corefile": `cluster.local:53 in-addr.arpa:53 {
  bind ` + nodeIP + `
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $WORK/kubeconfig
  }
  cache 1
}
`,
}

func writeFiles(context.Context) error {
	for name, text := range configuration {
		path := file(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		text = strings.NewReplacer("$WORK", work, "$GROUP", os.Getenv(groupVar)).Replace(text)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(file("servers"), 0o755); err != nil {
		return err
	}
	return apiserver.WriteFiles(work, "127.0.0.1")
}

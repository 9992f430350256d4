package charts

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"
)

// readers lists the containers that may read a Secret, by the suffix of its name. No container mounts the Secret with
// the CA's key: the Job that renews certificates reads it from the API server.
var readers = []struct {
	suffix   string
	commands []string
}{
	{"-gossip", []string{"/bin/sidecar", "/bin/ratelimit", "/bin/xds"}},
	{"-xds-tls", []string{"/bin/xds"}},
	{"-envoy-tls", []string{"/usr/local/bin/envoy", "/bin/keyward"}},
	{"-ca", nil},
	{"-tls", []string{"/bin/sidecar", "/bin/ratelimit", "/bin/coordinator"}}, // of members; after the Secrets with the same suffix
	{"-store", []string{"/bin/coordinator"}},
	{"-authority", []string{"/bin/sidecar"}},
	{"members", []string{"/bin/sidecar", "/bin/ratelimit"}},
	{"envoys", []string{"/usr/local/bin/envoy", "/bin/keyward"}},
	{"xds", []string{"/bin/xds"}},
}

// checkSecrets requires that each container reads only its own Secrets, and that only the pod that renews certificates
// has a token.
func checkSecrets(t *testing.T, p pod) {
	t.Helper()
	for _, c := range p.containers {
		secrets := slices.Clone(c.secrets)
		for _, m := range c.mounts {
			secrets = append(secrets, p.volumes[m].secrets...)
		}
		for _, s := range secrets {
			if !mayRead(c, s) {
				t.Errorf("%s: container %s (%s) reads the Secret %s", p.name, c.name, c.command, s)
			}
		}
	}
	if p.token && !renews(p) {
		t.Errorf("%s has a token of the API server", p.name)
	}
}

func mayRead(c container, secret string) bool {
	for _, r := range readers {
		if strings.HasSuffix(secret, r.suffix) {
			return slices.Contains(r.commands, c.command)
		}
	}
	return false
}

// renews reports whether a pod runs the command that renews certificates and nothing else.
func renews(p pod) bool {
	return len(p.containers) == 1 && p.runs("/bin/keyward") && slices.Contains(p.containers[0].args, "certs") && len(p.volumes) == 0
}

// checkRoles requires that a gateway gets only the Envoys' Secret, and that Roles allow only to read and replace the
// Secrets of the release.
func checkRoles(t *testing.T, objects []map[string]any) {
	t.Helper()
	for _, o := range objects {
		switch o["kind"] {
		case "ExtensionService":
			if s, _ := at(o, "spec", "validation", "caSecret").(string); s != "" && !mayRead(container{command: "/usr/local/bin/envoy"}, s) {
				t.Errorf("Contour takes its CA from the Secret %s, which is not the Envoys'", s)
			}
		case "ClusterRole", "ClusterRoleBinding":
			t.Errorf("a %v is rendered", o["kind"])
		case "Role":
			for _, r := range list(o["rules"]) {
				if !slices.Equal(texts(r["resources"]), []string{"secrets"}) || !slices.Equal(texts(r["verbs"]), []string{"get", "update"}) || len(texts(r["resourceNames"])) == 0 {
					t.Errorf("a Role allows %v", r)
				}
				for _, name := range texts(r["resourceNames"]) {
					if !strings.HasSuffix(name, "-tls") && !strings.HasSuffix(name, "-ca") {
						t.Errorf("a Role allows access to the Secret %s", name)
					}
				}
			}
		}
	}
}

func texts(v any) (all []string) {
	l, _ := v.([]any)
	for _, e := range l {
		s, _ := e.(string)
		all = append(all, s)
	}
	return all
}

// TestEnvoyNames requires that members and xDS servers verify the name of Envoys, which only the Envoys' certificate
// has, because an issuer's CA may also sign for others.
func TestEnvoyNames(t *testing.T) {
	for version, binary := range helms(t) {
		out, err := render(t, binary, "tls.mode=cert-manager", "tls.issuerRef.name=shared", "tls.envoyNames={spiffe://example.org/edge}")
		if err != nil {
			t.Fatal(err)
		}
		objects := documents(t, version, out)
		certificate := func(name string) []string {
			return texts(at(object(t, objects, "Certificate", name), "spec", "dnsNames"))
		}
		envoy := certificate("keyward-envoy-tls")
		want := envoy[0] + ",spiffe://example.org/edge"
		if got := at(object(t, objects, "ConfigMap", "keyward-member"), "data", "KEYWARD_TLS_ENVOY_NAMES"); got != want {
			t.Errorf("%s: members require %v, want %s", version, got, want)
		}
		containers := list(at(object(t, objects, "Deployment", "keyward-xds"), "spec", "template", "spec", "containers"))
		if !slices.ContainsFunc(list(containers[0]["env"]), func(e map[string]any) bool { return e["name"] == "KEYWARD_TLS_ENVOY_NAMES" && e["value"] == want }) {
			t.Errorf("%s: xDS servers do not require %s", version, want)
		}
		for _, other := range []string{"keyward-tls", "keyward-xds-tls"} {
			if slices.Contains(certificate(other), envoy[0]) {
				t.Errorf("%s: the certificate %s has the Envoys' name", version, other)
			}
		}
	}
}

// TestRenewal requires that every certificate created by Helm expires after the configured days, and that the CronJob
// that renews them may replace the Secrets of the CA and of certificates, and no others.
func TestRenewal(t *testing.T) {
	for version, binary := range helms(t) {
		out, err := render(t, binary, "tls.mode=generate", "tls.generate.days=60", "tls.generate.renewBeforeDays=20", "fullnameOverride=limits")
		if err != nil {
			t.Fatal(err)
		}
		objects := documents(t, version, out)
		var made []string
		for _, o := range objects {
			if o["kind"] != "Secret" || o["type"] != "kubernetes.io/tls" {
				continue
			}
			name := at(o, "metadata", "name").(string)
			made = append(made, name)
			raw := decoded(t, map[string]string{"crt": at(o, "data", "tls.crt").(string)})
			block, _ := pem.Decode(raw["crt"])
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if days := time.Until(c.NotAfter).Hours() / 24; !c.IsCA && (days < 59 || days > 60) {
				t.Errorf("%s: the certificate of %s is valid for %.1f days", version, name, days)
			}
		}
		slices.Sort(made)
		rules := list(object(t, objects, "Role", "limits-certs")["rules"])
		allowed := texts(rules[0]["resourceNames"])
		slices.Sort(allowed)
		if len(made) != 4 || !slices.Equal(allowed, made) {
			t.Errorf("%s: Helm makes the Secrets %v, the CronJob may replace %v", version, made, allowed)
		}
		template := at(object(t, objects, "CronJob", "limits-certs"), "spec", "jobTemplate", "spec", "template")
		p := podOf(t, "CronJob/limits-certs", template)
		args := strings.Join(p.containers[0].args, " ")
		if args != "certs --ca-secret=limits-ca --secret=limits-tls,limits-xds-tls,limits-envoy-tls --lifetime=1440h --before=480h" {
			t.Errorf("%s: the CronJob runs keyward %s", version, args)
		}
		hook := object(t, objects, "Job", "limits-certs")
		if at(hook, "metadata", "annotations", "helm.sh/hook") != "post-rollback" || canonicalJSON(at(hook, "spec", "template")) != canonicalJSON(template) {
			t.Errorf("%s: the hook after a rollback is %v", version, hook)
		}
		account := at(template, "spec", "serviceAccountName")
		subjects := list(object(t, objects, "RoleBinding", "limits-certs")["subjects"])
		if !p.token || account != "limits-certs" || len(subjects) != 1 || subjects[0]["name"] != account || subjects[0]["namespace"] != "envoy-gateway-system" {
			t.Errorf("%s: the CronJob has the account %v (token: %v), the Role is bound to %v", version, account, p.token, subjects)
		}
	}
}

package migrate

import (
	"fmt"
	"strings"
)

// steps returns the steps of the migration. docs/migration.md explains each.
func (d *Deployment) steps() []MigrationStep {
	steps := []MigrationStep{d.envoysStep(), d.checkStep()}
	if d.Replicas > 1 {
		steps = append(steps, d.secretStep())
	}
	steps = append(steps, d.mirrorSteps()...)
	return append(steps, d.imageStep(), d.lastStep())
}

func (d *Deployment) checkStep() MigrationStep {
	dir := d.RulesDir
	if dir == "" {
		dir = "./config"
	}
	merge := ""
	if d.Env.on("MERGE_DOMAIN_CONFIG") {
		merge = " --merge-domain-configs"
	}
	return MigrationStep{
		Title: "Check the rules. They do not change.",
		Do:    []string{fmt.Sprintf("keyward check %s --members %d%s", dir, d.Replicas, merge)},
		Back:  []string{"# nothing to undo"},
	}
}

// secretStep creates the credentials by which replicas authenticate each other.
func (d *Deployment) secretStep() MigrationStep {
	return MigrationStep{
		Title: "Create the gossip key and the certificates of the replicas (here with a demo CA; cert-manager works as " +
			"well).",
		Do: []string{
			"keyward certs --dir certs",
			d.kubectl("create secret generic " + secretName + " --from-file=tls.crt=certs/sidecar.crt " +
				"--from-file=tls.key=certs/sidecar.key --from-file=ca.crt=certs/ca.crt --from-file=gossip.key=certs/gossip.key"),
		},
		Back: []string{d.kubectl("delete secret " + secretName)},
	}
}

// mirrorSteps returns the steps that compare both services before Keyward's decisions apply.
func (d *Deployment) mirrorSteps() []MigrationStep {
	return []MigrationStep{{
		Title: "Safe option: run Keyward next to the old service, without callers, and a mirror in front of both.",
		Do: []string{
			d.helm("install keyward charts/keyward -f values.yaml"),
			"keyward mirror --listen :8081 --old ratelimit:8081 --new keyward:8081   # in pods labeled app=ratelimit-mirror, " +
				"where Envoys reach it",
			"# point Envoy's rate limit cluster at the mirror: callers still get the old service's decisions",
		},
		Back: []string{"# point Envoy's rate limit cluster at the old service", d.helm("uninstall keyward")},
	}, {
		Title: "When a complete window of every rule has passed without an unexplained difference, use Keyward's decisions.",
		Do: []string{
			"keyward mirror --listen :8081 --old ratelimit:8081 --new keyward:8081 --answer new",
			"# then point Envoy at keyward:8081, and stop the mirror",
		},
		Back: []string{"keyward mirror --listen :8081 --old ratelimit:8081 --new keyward:8081 --answer old"},
	}}
}

// imageStep is the short way: it changes the old deployment in place.
func (d *Deployment) imageStep() MigrationStep {
	s := MigrationStep{Title: fmt.Sprintf("Short option: change the image of the old deployment. %s", d.whatElse())}
	switch {
	case d.Manifest != nil && d.Manifest.Workload != "":
		s.Do = []string{"keyward migrate " + d.source() + " --patch keyward.yaml", d.kubectl("apply -f keyward.yaml")}
		s.Back = []string{d.kubectl("apply -f " + d.File + "   # keep the Redis running until then: it has the previous " +
			"counts")}
		if d.Replicas > 1 {
			s.Back = append(s.Back, d.kubectl("delete service "+d.name()+"-gossip"))
		}
	default:
		s.Do = []string{"# image: " + d.Image, "# command: [/bin/ratelimit]"}
		s.Back = []string{"# the old image line; keep the Redis running until then: it has the previous counts"}
	}
	return s
}

func (d *Deployment) whatElse() string {
	if d.Replicas > 1 {
		return fmt.Sprintf("For %d replicas this adds a headless Service, KEYWARD_JOIN and the Secret.", d.Replicas)
	}
	return "Nothing else changes."
}

func (d *Deployment) lastStep() MigrationStep {
	var store []string
	for _, v := range d.Env.Variables(false) {
		if strings.HasPrefix(v.Name, "REDIS_") || strings.HasPrefix(v.Name, "MEMCACHE_") {
			store = append(store, v.Name)
		}
	}
	s := MigrationStep{
		Title: "Days later: remove the store and its variables. After that, going back starts with empty counters.",
		Do:    []string{"# delete the Redis or memcached that only this service used"},
		Back:  []string{"# start the store again; its counters are empty"},
	}
	if len(store) > 0 {
		s.Do = append(s.Do, "# variables without effect: "+strings.Join(store, " "))
	}
	if d.Manifest != nil && d.Manifest.Workload != "" {
		s.Do = append(s.Do,
			"keyward migrate "+d.source()+" --clean --patch keyward.yaml && "+d.kubectl("apply -f keyward.yaml"))
	}
	return s
}

// source returns the flags with which the deployment was read.
func (d *Deployment) source() string {
	var flags []string
	if d.File != "" {
		flags = append(flags, "-f "+d.File)
	}
	if d.EnvFile != "" {
		flags = append(flags, "--env-file "+d.EnvFile)
	}
	if d.RulesDir != "" {
		flags = append(flags, "--rules "+d.RulesDir)
	}
	if d.Replicas > 1 && (d.Manifest == nil || d.Replicas != d.Manifest.Replicas) {
		flags = append(flags, fmt.Sprintf("--replicas %d", d.Replicas))
	}
	return strings.Join(flags, " ")
}

func (d *Deployment) name() string {
	_, name, _ := strings.Cut(d.Manifest.Workload, "/")
	return name
}

// namespace returns the namespace of the workload, or the empty string if the file does not contain it.
func (d *Deployment) namespace() string {
	if d.Manifest == nil {
		return ""
	}
	return text(at(d.Manifest.workload, "metadata", "namespace"))
}

// kubectl returns a kubectl command in the workload's namespace.
func (d *Deployment) kubectl(rest string) string { return d.inNamespace("kubectl", rest) }

// helm returns a Helm command in the workload's namespace.
func (d *Deployment) helm(rest string) string { return d.inNamespace("helm", rest) }

func (d *Deployment) inNamespace(program, rest string) string {
	if ns := d.namespace(); ns != "" {
		return program + " -n " + ns + " " + rest
	}
	return program + " " + rest
}

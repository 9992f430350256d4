package migrate

import (
	"fmt"
	"strings"
)

// steps are the way there, each with the way back. docs/migration.md says more of each.
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
		Title: "Check the rules: they stay as they are.",
		Do:    []string{fmt.Sprintf("keyward check %s --members %d%s", dir, d.Replicas, merge)},
		Back:  []string{"# nothing to undo"},
	}
}

// secretStep makes what the replicas know each other by.
func (d *Deployment) secretStep() MigrationStep {
	return MigrationStep{
		Title: "Make the key and the certificates by which replicas know each other (here by a demo CA; cert-manager does it, too).",
		Do: []string{
			"keyward certs --dir certs",
			d.kubectl("create secret generic " + secretName + " --from-file=tls.crt=certs/sidecar.crt --from-file=tls.key=certs/sidecar.key --from-file=ca.crt=certs/ca.crt --from-file=gossip.key=certs/gossip.key"),
		},
		Back: []string{d.kubectl("delete secret " + secretName)},
	}
}

// mirrorSteps are the careful way, for whoever wants to see it before it counts.
func (d *Deployment) mirrorSteps() []MigrationStep {
	return []MigrationStep{{
		Title: "Careful: run Keyward beside the old service, with nobody asking it yet, and a mirror before both.",
		Do: []string{
			d.helm("install keyward charts/keyward -f values.yaml"),
			"keyward mirror --listen :8081 --old ratelimit:8081 --new keyward:8081   # in pods labelled app=ratelimit-mirror, where Envoys reach it",
			"# point Envoy's rate limit cluster at the mirror: callers go on to get the old verdicts",
		},
		Back: []string{"# point Envoy's rate limit cluster at the old service", d.helm("uninstall keyward")},
	}, {
		Title: "When a whole window of every rule has gone by with no unexplained difference, let Keyward's verdicts count.",
		Do: []string{
			"keyward mirror --listen :8081 --old ratelimit:8081 --new keyward:8081 --answer new",
			"# then point Envoy at keyward:8081, and end the mirror",
		},
		Back: []string{"keyward mirror --listen :8081 --old ratelimit:8081 --new keyward:8081 --answer old"},
	}}
}

// imageStep is the short way: the old deployment becomes the new one.
func (d *Deployment) imageStep() MigrationStep {
	s := MigrationStep{Title: fmt.Sprintf("Or short: change the image of the old deployment. %s", d.whatElse())}
	switch {
	case d.Manifest != nil && d.Manifest.Workload != "":
		s.Do = []string{"keyward migrate " + d.source() + " --patch keyward.yaml", d.kubectl("apply -f keyward.yaml")}
		s.Back = []string{d.kubectl("apply -f " + d.File + "   # the Redis must still be there: it has the counts of before")}
		if d.Replicas > 1 {
			s.Back = append(s.Back, d.kubectl("delete service "+d.name()+"-gossip"))
		}
	default:
		s.Do = []string{"# image: " + d.Image, "# command: [/bin/ratelimit]"}
		s.Back = []string{"# the old image line; the Redis must still be there: it has the counts of before"}
	}
	return s
}

func (d *Deployment) whatElse() string {
	if d.Replicas > 1 {
		return fmt.Sprintf("For %d replicas a headless Service, KEYWARD_JOIN and the Secret come with it.", d.Replicas)
	}
	return "Nothing else."
}

func (d *Deployment) lastStep() MigrationStep {
	var store []string
	for _, v := range d.Env.Variables(false) {
		if strings.HasPrefix(v.Name, "REDIS_") || strings.HasPrefix(v.Name, "MEMCACHE_") {
			store = append(store, v.Name)
		}
	}
	s := MigrationStep{
		Title: "Days later: take the store away, and the variables that speak of it. From then on the way back begins with empty counts.",
		Do:    []string{"# delete the Redis or memcached that only this service used"},
		Back:  []string{"# start the store again: counts begin anew"},
	}
	if len(store) > 0 {
		s.Do = append(s.Do, "# without effect now: "+strings.Join(store, " "))
	}
	if d.Manifest != nil && d.Manifest.Workload != "" {
		s.Do = append(s.Do, "keyward migrate "+d.source()+" --clean --patch keyward.yaml && "+d.kubectl("apply -f keyward.yaml"))
	}
	return s
}

// source is the flags by which the deployment was read.
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

// namespace is the workload's; empty: the file does not say.
func (d *Deployment) namespace() string {
	if d.Manifest == nil {
		return ""
	}
	return text(at(d.Manifest.workload, "metadata", "namespace"))
}

// kubectl is a command in the workload's namespace.
func (d *Deployment) kubectl(rest string) string { return d.inNamespace("kubectl", rest) }

// helm is the same of Helm.
func (d *Deployment) helm(rest string) string { return d.inNamespace("helm", rest) }

func (d *Deployment) inNamespace(program, rest string) string {
	if ns := d.namespace(); ns != "" {
		return program + " -n " + ns + " " + rest
	}
	return program + " " + rest
}

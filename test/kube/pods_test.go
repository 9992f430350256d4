package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// object is the part of a pod that the tests read.
type object struct {
	Metadata struct {
		Name              string
		UID               string
		DeletionTimestamp string
		Labels            map[string]string
	}
	Status struct {
		Phase                 string
		PodIP                 string
		InitContainerStatuses []containerStatus
		ContainerStatuses     []containerStatus
	}
}

type containerStatus struct {
	Name         string
	ContainerID  string // containerd://ID
	RestartCount int
	Ready        bool
}

// pods lists the namespace's pods with these labels (`a=b,c=d`) that run and are not being deleted.
func pods(ctx context.Context, namespace, labels string) ([]object, error) {
	list, err := allPods(ctx, namespace, labels)
	return slices.DeleteFunc(list, func(p object) bool { return p.Metadata.DeletionTimestamp != "" || p.Status.Phase != "Running" }), err
}

// apiClient asks the API server itself, many times a second, which would be a lot of work for kubectl.
var apiClient = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// allPods lists those that end, too.
func allPods(ctx context.Context, namespace, labels string) ([]object, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, apiAddress+"/api/v1/namespaces/"+namespace+"/pods?labelSelector="+url.QueryEscape(labels), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	res, err := apiClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var list struct{ Items []object }
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read pods: %s", res.Status)
	}
	err = json.NewDecoder(res.Body).Decode(&list)
	return list.Items, err
}

func (p object) containers() []containerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

func (p object) restarts(name string) int {
	for _, c := range p.containers() {
		if c.Name == name {
			return c.RestartCount
		}
	}
	return -1
}

func (p object) ready() bool {
	return !slices.ContainsFunc(p.containers(), func(c containerStatus) bool { return !c.Ready })
}

// id is the container's name in containerd.
func (c containerStatus) id() string { return strings.TrimPrefix(c.ContainerID, "containerd://") }

package importer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// sailorMesh returns the mesh of a plan whose ranks are given by stage and replica, each as a list
// of a kind of device with how many of them, and a degree of tensor parallelism; and its hosts.
func sailorMesh(ranks [][][2]any, shares []int, sample int) (string, []SailorHosts, error) {
	stages, replicas, tp := len(ranks), len(ranks[0]), 0
	var kinds []string // by stage and replica
	for _, list := range ranks {
		if len(list) != replicas || replicas == 0 {
			return "", nil, fmt.Errorf("stages have %d and %d replicas; a mesh has as many of "+
				"each", replicas, len(list))
		}
		for _, r := range list {
			kind, degree, err := sailorRank(r)
			if err != nil {
				return "", nil, err
			}
			if tp == 0 {
				tp = degree
			}
			if degree != tp {
				return "", nil, fmt.Errorf("degrees of tensor parallelism are %d and %d; a mesh "+
					"has one", tp, degree)
			}
			kinds = append(kinds, kind)
		}
	}
	var hosts []SailorHosts
	for _, kind := range kinds {
		i := slices.IndexFunc(hosts, func(h SailorHosts) bool { return h.Kind == kind })
		if i < 0 {
			i, hosts = len(hosts), append(hosts, SailorHosts{Kind: kind})
		}
		hosts[i].Count++
	}
	byStage, byReplica := make([]string, stages), make([]string, replicas)
	same := [2]bool{true, true}
	for i, kind := range kinds {
		for j, list := range [][]string{byStage, byReplica} {
			at := &list[[2]int{i / replicas, i % replicas}[j]]
			if *at != "" && *at != kind {
				same[j] = false
			}
			*at = kind
		}
	}
	dp, pp := "", "micro="+strconv.Itoa(sample)
	switch {
	case len(hosts) == 1:
	case same[0]:
		pp += ";on=" + strings.Join(byStage, "/")
	case same[1]:
		dp = "(on=" + strings.Join(byReplica, "/") + ")"
	default:
		return "", nil, fmt.Errorf("kinds of devices differ among replicas and among stages")
	}
	parts := make([]string, stages)
	for i, n := range shares {
		parts[i] = strconv.Itoa(n)
	}
	return fmt.Sprintf("pp=%d(%s;%s),dp=%d%s,tp=%d", stages, strings.Join(parts, "/"), pp, replicas,
		dp, tp), hosts, nil
}

// sailorRank reads [[["A100-40", 4, "zone"]], 4].
func sailorRank(rank [2]any) (kind string, degree int, err error) {
	text, err := json.Marshal(rank)
	if err != nil {
		return "", 0, err
	}
	var devices [][]json.RawMessage
	if err := json.Unmarshal(text, &[]any{&devices, &degree}); err != nil {
		return "", 0, fmt.Errorf("ranks %s: %w", text, err)
	}
	if len(devices) != 1 || len(devices[0]) < 1 || degree < 1 {
		return "", 0, fmt.Errorf("ranks %s: they are on one kind of device", text)
	}
	if err := json.Unmarshal(devices[0][0], &kind); err != nil || kind == "" {
		return "", 0, fmt.Errorf("ranks %s: the kind of device has no name", text)
	}
	return kind, degree, nil
}

// Package numa says which processors of a host are near which memory, as far as a process may use
// both. Any goroutine may call its functions; they keep nothing.
package numa

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Where Linux says it: the nodes of the host, and what this process may use of them.
const (
	System = "/sys/devices/system/node"
	Self   = "/proc/self/status"
)

// Node is memory, and the processors that are nearest to it.
type Node struct {
	ID   int   // its number on the host
	CPUs []int // the numbers of those that may be used, in ascending order
}

// Read lists the nodes of a host that a process may use, in ascending order, from a folder such as
// System and a file such as Self. It returns nil where there is nothing to choose: on a host with
// one node, on a system that does not say, for a process that is kept on one node; and where some
// of its processors are near no memory that it may use, because then the kernel knows better which
// is next.
func Read(system, status string) []Node {
	cpus, mems, err := readAllowed(status)
	if err != nil {
		return nil
	}
	backed, err := readList(filepath.Join(system, "has_memory"))
	if err != nil {
		return nil
	}
	online, err := readList(filepath.Join(system, "online"))
	if err != nil {
		return nil
	}
	var nodes []Node
	for _, id := range online {
		near, err := readList(filepath.Join(system, fmt.Sprintf("node%d", id), "cpulist"))
		if err != nil {
			return nil
		}
		near = intersect(near, cpus)
		switch memory := slices.Contains(backed, id) && slices.Contains(mems, id); {
		case len(near) == 0: // memory alone is no place for a worker
		case !memory:
			return nil
		default:
			nodes = append(nodes, Node{ID: id, CPUs: near})
		}
	}
	if len(nodes) < 2 {
		return nil
	}
	return nodes
}

// Home returns the node on which a process is kept, of those that Read gave; status is the file of
// the process in /proc, which it reads. false means that the process may run on several, or that
// this is not known.
func Home(nodes []Node, status string) (id int, kept bool) {
	cpus, _, err := readAllowed(status)
	if err != nil {
		return 0, false
	}
	homes := 0
	for _, n := range nodes {
		if len(intersect(n.CPUs, cpus)) > 0 {
			id = n.ID
			homes++
		}
	}
	return id, homes == 1
}

// Next returns the node for one more worker: the one with the most processors a worker, when
// taken[id] workers are on a node already. nodes is not empty, and nothing is changed.
func Next(nodes []Node, taken map[int]int) Node {
	return slices.MinFunc(nodes, func(a, b Node) int {
		return (taken[a.ID]+1)*len(b.CPUs) - (taken[b.ID]+1)*len(a.CPUs)
	})
}

// readAllowed reads which processors, and which nodes with memory, a process may use. status is a
// file such as Self.
func readAllowed(status string) (cpus, mems []int, err error) {
	text, err := os.ReadFile(status)
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		name, list, _ := strings.Cut(line, ":")
		switch name {
		case "Cpus_allowed_list":
			cpus, err = parseList(list)
		case "Mems_allowed_list":
			mems, err = parseList(list)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return cpus, mems, nil
}

// readList reads a file with a list of numbers.
func readList(path string) ([]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseList(string(text))
}

// parseList returns the numbers of a list as the kernel writes it: "0-3,8", or nothing at all. They
// ascend. It fails on numbers of more than 16 bits, as no kernel has, so that a range in some other
// text does not fill the memory.
func parseList(text string) (list []int, err error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	next := 0
	for part := range strings.SplitSeq(text, ",") {
		low, high, several := strings.Cut(part, "-")
		if !several {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("numa: %q is no list of numbers: %w", text, err)
		}
		to, err := strconv.ParseUint(high, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("numa: %q is no list of numbers: %w", text, err)
		}
		if int(from) < next || to < from {
			return nil, fmt.Errorf("numa: the numbers of %q do not ascend", text)
		}
		for n := int(from); n <= int(to); n++ {
			list = append(list, n)
		}
		next = int(to) + 1
	}
	return list, nil
}

// intersect returns what two ascending lists share.
func intersect(a, b []int) (both []int) {
	for _, n := range a {
		if _, in := slices.BinarySearch(b, n); in {
			both = append(both, n)
		}
	}
	return both
}

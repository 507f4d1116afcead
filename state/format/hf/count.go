package hf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

var (
	// numbered is a name that says how many files there are, such as model-00003-of-00007.safetensors.
	numbered = regexp.MustCompile(`^(.*?)(\d+)-of-(\d+)\.safetensors$`)
	// rankFile is one of torch's distributed checkpoint, where a rank has files only for the numbers that it has something to write for.
	rankFile = regexp.MustCompile(`^shard-\d+-model-\d+-of-\d+\.safetensors$`)
)

// counted says of how many files the one with this name is, by the name; 0 where it does not tell.
func counted(name string) int {
	m := numbered.FindStringSubmatch(name)
	if m == nil || rankFile.MatchString(name) {
		return 0
	}
	n, err := strconv.Atoi(m[3])
	if err != nil {
		return 0
	}
	return n
}

// allOf fails when files are missing by the names of the others. They count from 1, or from 0 if there is a file 0.
func allOf(names []string) error {
	sets := map[string]map[int]bool{}
	like := map[string][]string{}
	for _, name := range names {
		if counted(name) == 0 {
			continue
		}
		m := numbered.FindStringSubmatch(name)
		i, err := strconv.Atoi(m[2])
		if err != nil {
			return fmt.Errorf("safetensors: %s: a file of such a number", name)
		}
		set := m[1] + "*-of-" + m[3]
		if sets[set] == nil {
			sets[set], like[set] = map[int]bool{}, m
		}
		sets[set][i] = true
	}
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		m, first := like[set], 1
		if sets[set][0] {
			first = 0
		}
		count := counted(m[0])
		for i := first; i < first+count; i++ {
			if !sets[set][i] {
				return fmt.Errorf("safetensors: %s%0*d-of-%s.safetensors is missing, by its name %s is one of %d files; copy it here too, or all files anew",
					m[1], len(m[2]), i, m[3], m[0], count)
			}
		}
	}
	return nil
}

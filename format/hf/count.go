package hf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

var (
	// numbered is a name that says how many files there are, such as
	// model-00003-of-00007.safetensors.
	numbered = regexp.MustCompile(`^(.*?)(\d+)-of-(\d+)\.safetensors$`)
	// rankFile is one of torch's distributed checkpoint, where a rank has files only for the
	// numbers that it has something to write for.
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

// allOf fails when files are missing by the names of the others. They count from 1, or from 0 if
// there is a file 0.
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
				return fmt.Errorf("safetensors: %s%0*d-of-%s.safetensors is missing, by its "+
					"name %s is one of %d files; copy it here too, or all files anew",
					m[1], len(m[2]), i, m[3], m[0], count)
			}
		}
	}
	return nil
}

// complete fails when files are missing by what those say that shoal has written: each rank has as
// many as it says.
func (s *set) complete(names []string) error {
	have, first := map[[2]int]string{}, ""
	files := map[int]int{} // of a rank
	for _, name := range names {
		o := s.origins[name]
		if o == nil {
			continue
		}
		if first == "" {
			first = name
		}
		if ranks := s.origins[first].Ranks; o.Ranks != ranks {
			return fmt.Errorf("safetensors: %s is of a checkpoint of %d ranks, %s of one of %d; "+
				"keep the files of one of them", first, ranks, name, o.Ranks)
		}
		if other := have[[2]int{o.Rank, o.File}]; other != "" {
			return fmt.Errorf("safetensors: %s and %s are both file %d of rank %d; keep the one "+
				"that is of this checkpoint", other, name, o.File, o.Rank)
		}
		have[[2]int{o.Rank, o.File}], files[o.Rank] = name, max(o.Files, files[o.Rank])
	}
	if first == "" {
		return nil
	}
	for rank := range s.origins[first].Ranks {
		for file := 1; file <= max(files[rank], 1); file++ {
			if have[[2]int{rank, file}] == "" {
				return fmt.Errorf("safetensors: the file shard-%05d-model-%05d-of-….safetensors "+
					"is missing: by %s there are %d ranks%s; copy it here too, or write all of "+
					"them anew",
					rank+1, file, first, s.origins[first].Ranks, s.short())
			}
		}
	}
	return nil
}

// short names a tensor that lacks elements, if any does.
func (s *set) short() string {
	for i := range s.Tensors {
		t, n := &s.Tensors[i], 0
		for _, p := range t.Pieces {
			n += p.Box.Elements()
		}
		if all, err := t.Shape.Elements(); err == nil && n < all {
			return fmt.Sprintf(", and of tensor %q %d of %d elements are not here", t.Name, all-n,
				all)
		}
	}
	return ""
}

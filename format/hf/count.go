package hf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/internal/pattern"
)

// This file finds out, for the reader of this package, whether files of a checkpoint are missing.
// It does no I/O: names and headers that were read are enough.

var (
	// numbered matches a name that tells the number of files, such as
	// model-00003-of-00007.safetensors.
	numbered = pattern.New(`^(.*?)(\d+)-of-(\d+)\.(safetensors|bin)$`)
	// rankFile matches a file of torch's distributed checkpoint, where a rank has files only for
	// the numbers for which it has something to write.
	rankFile = pattern.New(`^shard-\d+-model-\d+-of-\d+\.safetensors$`)
)

// fileCount returns how many files there are by the name of one; 0 if the name does not tell.
func fileCount(name string) int {
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

// checkNumbered fails when the names of files show that others are missing. They count from 1, or
// from 0 if there is a file 0.
func checkNumbered(names []string) error {
	sets := map[string]map[int]bool{}
	like := map[string][]string{}
	for _, name := range names {
		if fileCount(name) == 0 {
			continue
		}
		m := numbered.FindStringSubmatch(name)
		i, err := strconv.Atoi(m[2])
		if err != nil {
			return fmt.Errorf("safetensors: %s: a file of such a number", name)
		}
		set := m[1] + "*-of-" + m[3] + "." + m[4]
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
		count := fileCount(m[0])
		for i := first; i < first+count; i++ {
			if !sets[set][i] {
				return fmt.Errorf("%s: %s%0*d-of-%s.%s is missing, by its name %s is one of "+
					"%d files; copy it here too, or all files anew", m[4], m[1], len(m[2]), i,
					m[3], m[4], m[0], count)
			}
		}
	}
	return nil
}

// checkOrigins fails when the origins in files that shoal has written show that others are missing.
func (s *reader) checkOrigins(names []string) error {
	have, first := map[[2]int]string{}, ""
	files := map[int]int{} // number of files of each rank
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
					rank+1, file, first, s.origins[first].Ranks, s.describeShortTensor())
			}
		}
	}
	return nil
}

// describeShortTensor returns a clause about a tensor that lacks elements; "" if there is none.
func (s *reader) describeShortTensor() string {
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

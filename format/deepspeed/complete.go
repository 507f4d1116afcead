package deepspeed

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// This file finds out if files of a universal checkpoint are missing, on its reader's goroutine.

// copyHint says what to do about missing files.
const copyHint = "copy it from where the checkpoint was written, or convert again"

// checkComplete fails when files of a universal checkpoint are missing. kinds is what each folder
// of zero/ has; trained are the parameters that model states say are trained, with the file that
// says so. Other folders can have weights alone: DeepSpeed's converter makes such ones of what is
// frozen and of buffers. Where nothing says which are trained, it sets Doubt. It asks the folder
// for one file, on the reader's goroutine.
func (r *reader) checkComplete(kinds map[string][]string, trained map[string]string) error {
	zero := path.Join(r.dir, "zero")
	if name := path.Join(zero, stateKey+".pt"); !r.hasFile(name) {
		return fmt.Errorf("%s is missing, with what parameters have in common; %s", name, copyHint)
	}
	for _, name := range slices.Sorted(maps.Keys(trained)) {
		if _, ok := kinds[name]; !ok {
			return fmt.Errorf("%s is missing, with the state of parameter %q, which %s names; %s",
				path.Join(zero, name), name, trained[name], copyHint)
		}
	}
	params := slices.Sorted(maps.Keys(kinds))
	sets := map[string]string{} // by what is in it, the first folder
	for _, name := range params {
		if key := strings.Join(kinds[name], " "); sets[key] == "" {
			sets[key] = name
		}
	}
	for _, name := range params {
		mine := kinds[name]
		if !slices.Contains(mine, "fp32") {
			return fmt.Errorf("%s is missing, the weights of parameter %q; %s",
				path.Join(zero, name, "fp32.pt"), name, copyHint)
		}
		if len(mine) == 1 && trained[name] == "" {
			continue
		}
		for _, other := range slices.Sorted(maps.Values(sets)) {
			if kind := missingKinds(mine, kinds[other]); kind != "" {
				return fmt.Errorf("%s is missing: parameter %q has such state and %q lacks it; %s",
					path.Join(zero, name, kind+".pt"), other, name, copyHint)
			}
		}
	}
	if len(trained) == 0 {
		r.Doubt = "its model states do not name the parameters (param_shapes), so it is not " +
			"known whether a folder of zero/ is missing"
	}
	return nil
}

// missingKinds returns what others have and mine lacks, if others include all of mine; "" when they
// are equal, or each has something of its own, as the parameters of two optimizers have.
func missingKinds(mine, others []string) string {
	for _, kind := range mine {
		if !slices.Contains(others, kind) {
			return ""
		}
	}
	for _, kind := range others {
		if !slices.Contains(mine, kind) {
			return kind
		}
	}
	return ""
}

// hasFile reports whether the folder that was opened has a file of this path. It looks in the
// folder.
func (r *reader) hasFile(name string) bool {
	_, err := fs.Stat(r.files.FS(), name)
	return err == nil
}

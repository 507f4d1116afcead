package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/plural"
)

// Which tensors of a checkpoint are meant, and under which names. Frameworks join the parts of a
// name by dots, and checkpoints of jobs by slashes: whoever selects or renames can write dots for
// both. The methods of Checkpoint change its list of tensors, and no file; they are for one
// goroutine at a time.

// Select drops the tensors whose name keep does not accept, neither as it is nor with dots for
// slashes. It fails when none is left.
func (c *Checkpoint) Select(keep func(name string) bool) error {
	all := c.Tensors
	c.selected = true
	c.Tensors = slices.DeleteFunc(slices.Clone(c.Tensors), func(t format.Tensor) bool {
		return !keep(t.Name) && !keep(dotted(t.Name))
	})
	if len(c.Tensors) == 0 {
		return fmt.Errorf("%s: no tensor is left of those that it has; %s", c.path,
			describeNames(all))
	}
	return nil
}

// Rename replaces the prefix from of tensor names by to, where dots in from stand for slashes too.
// It fails when no name begins so, a tensor would have none, or two would have one name.
func (c *Checkpoint) Rename(from, to string) error {
	tensors, renamed := slices.Clone(c.Tensors), maps.Clone(c.renamed)
	n := 0
	for i := range tensors {
		t := &tensors[i]
		if !strings.HasPrefix(t.Name, from) && !strings.HasPrefix(dotted(t.Name), from) {
			continue
		}
		old, before := c.renamed[t.Name]
		if !before {
			old = t.Name
		}
		if to == "" && len(t.Name) == len(from) && from != "" {
			return fmt.Errorf("%s: without %q, nothing is left of the name of tensor %q; give a "+
				"shorter beginning, or another name", c.path, from, t.Name)
		}
		t.Name = to + t.Name[len(from):]
		renamed[t.Name] = old
		n++
	}
	if n == 0 {
		return fmt.Errorf("%s: no tensor has a name that begins with %q; %s", c.path, from,
			describeNames(c.Tensors))
	}
	c.Tensors, c.renamed = tensors, renamed
	if err := c.Finish(); err != nil {
		return fmt.Errorf("%s: with %q for %q in front, names are not told apart: %w; choose "+
			"another beginning, or take fewer tensors", c.path, to, from, err)
	}
	return nil
}

// dotted returns a name with dots for slashes.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }

// describeNames says, for an error, how the names of tensors begin, and names the pattern of the
// most frequent beginning.
func describeNames(tensors []format.Tensor) string {
	const most = 5
	counts := map[string]int{}
	for i := range tensors {
		name := tensors[i].Name
		counts[name[:strings.IndexAny(name, "./")+1]]++
	}
	if len(tensors) == 0 {
		return "it has none"
	}
	flat := counts[""]
	delete(counts, "")
	if len(counts) == 0 {
		var names []string
		for i := range tensors[:min(len(tensors), most)] {
			names = append(names, fmt.Sprintf("%q", tensors[i].Name))
		}
		return fmt.Sprintf("it has %s, such as %s", plural.Of(len(tensors), "tensor"),
			strings.Join(names, ", "))
	}
	begins := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	var list []string
	for _, begin := range begins[:min(len(begins), most)] {
		list = append(list, fmt.Sprintf("%q (%d)", begin, counts[begin]))
	}
	if n := len(begins) - most; n > 0 {
		list = append(list, fmt.Sprintf("%d more", n))
	}
	if flat > 0 {
		list = append(list, fmt.Sprintf("others (%d)", flat))
	}
	return fmt.Sprintf("its names begin with %s: --only %s takes the first of these",
		strings.Join(list, ", "), begins[0])
}

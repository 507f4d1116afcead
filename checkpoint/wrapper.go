package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// Trainers save a model together with what they need to go on, and wrappers of a model put their
// own names in front of its. Nothing here reads a file; the methods are for one goroutine at a
// time.

// A Wrapper is what a checkpoint has around the names of a model.
type Wrapper struct {
	Of     string // who writes such checkpoints, for people
	Prefix string // what stands before the names of the model
}

// modelKeys are the keys under which training scripts save the model's state_dict, the clearest
// first.
var modelKeys = []string{"state_dict", "model_state_dict", "model_state", "model", "net",
	"network", "module"}

// Wrapper returns what is around the names of the model, if the checkpoint is one of a job of
// shoal, or a file of torch.save with a model and more: of Lightning, or of a training script.
func (c *Checkpoint) Wrapper() (w Wrapper, found bool) {
	if c.IsJob() {
		return Wrapper{"a job", "model/"}, c.HasBeginning("model/")
	}
	if c.Format != "torch" || !c.Nested {
		return w, false
	}
	keys := map[string]bool{}
	for _, v := range c.Values {
		key, _, _ := strings.Cut(v.Path, ".")
		keys[key] = true
	}
	if keys["pytorch-lightning_version"] && c.HasBeginning("state_dict.") {
		return Wrapper{"Lightning", "state_dict."}, true
	}
	for i := range c.Tensors {
		key, _, _ := strings.Cut(c.Tensors[i].Name, ".")
		keys[key] = true
	}
	trained := false // whether there is something that only training needs
	for key := range keys {
		trained = trained || strings.HasPrefix(key, "optim") || key == "epoch"
	}
	for _, key := range modelKeys {
		// A model alone can have a part that is called so.
		clear := key == "state_dict" || strings.HasPrefix(key, "model_state")
		if (clear || trained) && c.HasBeginning(key+".") {
			return Wrapper{"a training script", key + "."}, true
		}
	}
	return w, false
}

// HasBeginning reports whether a tensor has a name that begins with a prefix.
func (c *Checkpoint) HasBeginning(prefix string) bool {
	return slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
		return strings.HasPrefix(t.Name, prefix)
	})
}

// ModelAlone leaves of a checkpoint what is inside its wrapper, under the names that the model has
// for it, without the prefix that torch's DDP or torch.compile puts before all of them. notes tell
// people what was done; without a wrapper nothing is done. It changes the checkpoint's list of
// tensors, as Select and Rename do.
func (c *Checkpoint) ModelAlone() (notes []string, err error) {
	all := len(c.Tensors)
	if w, found := c.Wrapper(); found {
		if err := c.Select(func(name string) bool {
			return strings.HasPrefix(name, w.Prefix)
		}); err != nil {
			return nil, err
		}
		if err := c.Rename(w.Prefix, ""); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("%s is a checkpoint of %s: of its %d tensors the %d of "+
			"the model are taken, without %q before their names; --only '**' takes all, as they "+
			"are called", c.path, w.Of, all, len(c.Tensors), w.Prefix))
	}
	for _, w := range []Wrapper{{"torch.compile", "_orig_mod."}, {"DDP", "module."},
		{"torch.compile", "_orig_mod."}} {
		if c.Format != "torch" && !c.IsJob() || len(c.Tensors) == 0 ||
			slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
				return !strings.HasPrefix(t.Name, w.Prefix)
			}) {
			continue
		}
		if err := c.Rename(w.Prefix, ""); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("%q, which %s puts before all names, is left out",
			w.Prefix, w.Of))
	}
	return notes, nil
}

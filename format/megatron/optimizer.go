package megatron

// This file reads the optimizers of mp_rank folders; it blocks on files, on Read's goroutine.
import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

const (
	optimizerKey    = "optimizer"
	distributedKey  = optimizerKey + ".distributed"
	distributedName = "distrib_optim.pt"
	// before the name of a parameter: how many steps it has made
	stepPrefix = optimizerKey + ".step."
)

// mainKeys and innerKeys are Megatron's keys of copies in f32, and of the optimizer that it wraps.
var (
	mainKeys  = []string{"fp32_from_fp16_params", "fp32_from_fp16"}
	innerKeys = []string{"optimizer", "optimizer_state_dict"}
)

// An unnamedError says why the tensors of an optimizer keep their positions instead of names.
type unnamedError struct{ why string }

// Error returns why there are no names.
func (e *unnamedError) Error() string { return e.why }

// unnamedErrorf formats an unnamedError.
func unnamedErrorf(text string, args ...any) error {
	return &unnamedError{fmt.Sprintf(text, args...)}
}

// A slot is a parameter of an optimizer, which knows it only by number.
type slot struct {
	main  *format.Tensor // copy in f32; nil when the parameter itself is f32
	kinds []kind         // what the optimizer keeps for it
	param *param         // nil until it is known
}

// A kind is one kind of state of a parameter, such as exp_avg.
type kind struct {
	name string
	is   any // *format.Tensor, or a value of a checkpoint
}

// A group is parameters that an optimizer treats alike. It is for one goroutine, and does no I/O.
type group struct {
	path  string             // path of its values
	raw   *pickle.Dict       // values in the file
	slots []*slot            // its parameters
	mains []*torchzip.Tensor // copies of the parameters that have one, in the same order

	decays  bool // whether there is weight decay
	expert  bool // whether it holds parameters that expert parallel ranks do not share
	decided bool // whether the two flags decide which parameters are in it

	elsewhere bool // whether its parameters and their state are in another file
}

// addOptimizers adds the tensors of the optimizers of all ranks to a checkpoint, named after their
// parameters. If it cannot name them, for one rank or several, it returns why, and adds nothing.
func addOptimizers(c *format.Checkpoint, files *format.Files, parts []*part,
	size degrees) (apart string, err error) {
	n := &stateNamer{shared: map[string]int{}, values: map[string]any{},
		members: map[string][]string{},
		listed:  map[string]bool{}, paths: map[string]string{}}
	for _, p := range parts {
		if err = p.openDistributed(files, parts[0]); err != nil {
			return "", err
		}
	}
	for _, p := range parts {
		if err = n.addPart(files, p, size); err != nil {
			err = fmt.Errorf("%s: %w", path.Base(path.Dir(p.file.Name)), err)
			break
		}
	}
	var why *unnamedError
	if errors.As(err, &why) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	c.Tensors, c.Values = append(c.Tensors, n.Tensors...), append(c.Values, n.Values...)
	for path, v := range n.values {
		c.Values = append(c.Values, format.Value{Path: path, Data: v})
	}
	c.Values = append(c.Values, n.memberNames()...)
	return "", nil
}

// openDistributed opens the distributed optimizer's file beside that of the model, and sets it in
// the part: all ranks have one, or none.
func (p *part) openDistributed(files *format.Files, first *part) error {
	name := path.Join(path.Dir(p.file.Name), distributedName)
	f, err := torchzip.Open(files, name, globals)
	if errors.Is(err, fs.ErrNotExist) {
		if p != first && first.distributed != nil {
			return fmt.Errorf("%s is missing, and %s is there: a rank did not finish its save, "+
				"or the file was not copied", name, first.distributed.Name)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if p != first && first.distributed == nil {
		return fmt.Errorf("%s is there, and the first rank has none: a rank did not finish its "+
			"save, or the file was not copied", name)
	}
	p.distributed = f
	return nil
}

// addPart adds the optimizer state of a rank under its names.
func (n *stateNamer) addPart(files *format.Files, p *part, size degrees) error {
	root, ok := p.root.Get(optimizerKey)
	if !ok && p.distributed == nil {
		return nil // saved without
	}
	groups, err := readGroups(root)
	if err != nil {
		return err
	}
	elsewhere := slices.ContainsFunc(groups, func(g *group) bool { return g.elsewhere })
	if elsewhere && p.distributed == nil && p.tp+p.pp+p.ep == 0 {
		n.Values = append(n.Values,
			format.Value{Path: distributedKey, Data: format.Unread{Why: fmt.Errorf(
				"%s keeps the optimizer's state in %s beside it, and that is not there",
				p.file.Name, distributedName)}})
	}
	slots, err := matchSlots(files, p, groups, size)
	if err == nil && p.distributed != nil {
		var more []*slot
		more, err = unpackBuffers(files, p)
		slots = append(slots, more...)
	}
	if err != nil {
		return err
	}
	for _, s := range slots {
		if err := n.addState(s); err != nil {
			return err
		}
	}
	if !ok {
		return nil
	}
	if err := n.alignGroups(groups, p); err != nil {
		return err
	}
	n.listMembers(groups, p, slots, size)
	return n.addCommonState(p, root)
}

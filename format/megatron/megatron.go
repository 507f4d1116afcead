// Package megatron reads and writes the checkpoints that Megatron-LM writes in its format "torch":
// a folder for each tensor and pipeline (and expert) parallel rank with one file of torch.save. Its
// format torch_dist is torch's distributed checkpoint (package dcp) under names of its own, with
// layers and experts as leading dimensions: ReadDist and LayoutDist.
//
// Layers are numbered over all pipeline stages, and experts over all expert parallel ranks, as the
// files themselves number from 0 in each. What the files do not say is how the parts of the tensor
// parallel ranks fit together: Read gives each as a tensor of its own with its place, and JoinRanks
// puts together what it knows by its name.
package megatron

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
)

const (
	// LatestName is the file that names the newest checkpoint of a folder.
	LatestName = "latest_checkpointed_iteration.txt"

	fileName = "model_optim_rng.pt"
)

// globals are the classes that Megatron's arguments and states mention, most of them enumerations.
var globals = pickle.InertGlobals(
	"megatron.core.enums.ModelType", "megatron.core.enums.Fp8Recipe",
	"megatron.core.enums.Fp4Recipe", "megatron.core.transformer.enums.ModelType",
	"megatron.core.transformer.enums.LayerType", "megatron.core.transformer.enums.AttnType",
	"megatron.core.transformer.enums.AttnMaskType", "megatron.core.transformer.enums.AttnBackend",
	"megatron.core.transformer.enums.CudaGraphModule",
	"megatron.core.transformer.enums.CudaGraphScope",
	"megatron.core.transformer.enums.InferenceCudaGraphScope",
	"megatron.core.dist_checkpointing.validation.StrictHandling",
	"megatron.core.rerun_state_machine.RerunDiagnostic",
	"megatron.core.rerun_state_machine.RerunMode", "megatron.core.rerun_state_machine.RerunState",
	"megatron.core.rerun_state_machine.RerunValidationStatus",
	"megatron.core.inference.config.PrefixCachingEvictionPolicy",
	"megatron.core.inference.config.PrefixCachingCoordinatorPolicy",
	"megatron.core.inference.config.KVCacheManagementMode",
	"megatron.core.inference.config.CudaGraphSizingDistribution",
	"megatron.core.inference.config.AsyncScheduleMode",
	"megatron.core.inference.moe.InferenceGroupedGemmBackend",
	"megatron.training.checkpointing.CheckpointType", "megatron.model.enums.ModelType",
	"megatron.model.enums.LayerType", "megatron.model.enums.AttnType",
	"megatron.model.enums.AttnMaskType", "megatron.model.enums.PositionEmbeddingType",
	"megatron.legacy.enums.ModelType", "megatron.legacy.model.enums.LayerType",
	"megatron.legacy.model.enums.AttnType", "megatron.legacy.model.enums.AttnMaskType",
)

var rankFolder = pattern.New(`^mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?$`)

// A part is the file of one rank, for one goroutine. Only openDistributed reads files.
type part struct {
	tp, pp, ep int            // the rank, by axis
	file       *torchzip.File // its file
	root       *pickle.Dict   // content of the file
	chunks     []*pickle.Dict // models: more than one with a virtual pipeline
	// of all chunks, in the order of the file, which is that in which the model registers them
	params []*param

	distributed *torchzip.File // the distributed optimizer's file; nil = none
}

// degrees are the sizes of the axes, or positions on them.
type degrees struct{ tp, pp, ep int }

// Read reads a folder with latest_checkpointed_iteration.txt, or one of its iterations. It blocks.
func Read(files *format.Files) (*format.Checkpoint, error) {
	dir, err := Latest(files)
	if err != nil {
		return nil, err
	}
	parts, size, err := openRanks(files, dir)
	if err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	c := &format.Checkpoint{Format: "Megatron"}
	if err := addModels(c, parts, size); err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	apart, err := addOptimizers(c, files, parts, size)
	if err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	for _, p := range parts {
		if err := p.addRankState(c, size, apart); err != nil {
			return nil, fmt.Errorf("Megatron: %w", err)
		}
	}
	return c, c.Finish()
}

// Latest returns the folder of the newest iteration, "." where no file names it.
func Latest(files *format.Files) (string, error) {
	text, err := files.ReadAll(LatestName, 1024)
	if errors.Is(err, fs.ErrNotExist) {
		return ".", nil
	}
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(text))
	if name == "release" {
		return name, nil
	}
	n, err := strconv.ParseUint(name, 10, 40)
	if err != nil {
		return "", fmt.Errorf("%s: %.40q is no iteration", LatestName, name)
	}
	return fmt.Sprintf("iter_%07d", n), nil
}

// openRanks opens the files of all ranks in a folder, first the file with the lowest numbers, which
// has the arguments, and returns the sizes of the axes.
func openRanks(files *format.Files, dir string) ([]*part, degrees, error) {
	var none degrees
	entries, err := fs.ReadDir(files.FS(), dir)
	if err != nil {
		return nil, none, err
	}
	var parts []*part
	var size degrees
	there := map[degrees]string{} // the folders of the ranks
	for _, e := range entries {
		m := rankFolder.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		f, err := torchzip.Open(files, path.Join(dir, e.Name(), fileName), globals)
		if err != nil {
			return nil, none, err
		}
		p := &part{file: f}
		if err := p.findModels(); err != nil {
			return nil, none, fmt.Errorf("%s: %w", f.Name, err)
		}
		if len(parts) == 0 {
			if size, err = p.readDegrees(); err != nil {
				return nil, none, fmt.Errorf("%s: %w", f.Name, err)
			}
		}
		if err := p.setRank(m[1:], size); err != nil {
			return nil, none, fmt.Errorf("%s: %w", f.Name, err)
		}
		rank := degrees{p.tp, p.pp, p.ep}
		if other := there[rank]; other != "" {
			return nil, none, fmt.Errorf(
				"%s and %s are both of rank %s; keep the one that is of this checkpoint",
				path.Join(dir, other), e.Name(), rank.rankText(size))
		}
		there[rank] = e.Name()
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		return nil, none, fmt.Errorf("%s has no folder mp_rank_*", dir)
	}
	if err := checkComplete(dir, parts[0], there, size); err != nil {
		return nil, none, err
	}
	slices.SortFunc(parts, func(a, b *part) int { return cmp.Or(a.pp-b.pp, a.tp-b.tp, a.ep-b.ep) })
	return parts, size, nil
}

// checkComplete fails when ranks have no folder, and names them. first tells how many ranks there
// are.
func checkComplete(dir string, first *part, there map[degrees]string, size degrees) error {
	const most = 8 // to name
	all := size.tp * size.pp * size.ep
	missing := all - len(there)
	if missing == 0 {
		return nil
	}
	var names []string
	for i := 0; i < all && len(names) < min(missing, most); i++ {
		rank := degrees{i / size.ep % size.tp, i / size.ep / size.tp, i % size.ep}
		if there[rank] == "" {
			s := rankFiles{tp: rank.tp, pp: rank.pp, ep: rank.ep}
			names = append(names, fmt.Sprintf("%s (%s)", s.folderName(size), rank.rankText(size)))
		}
	}
	if missing > most {
		names = append(names, fmt.Sprintf("and %d more", missing-most))
	}
	todo := "copy what is missing here too"
	// experts that are cut over fewer ranks are of others too, and Megatron has one rank of those
	// write
	if args, ok := first.root.Get("args"); ok {
		if n, err := pickle.Get[int64](args, "expert_tensor_parallel_size"); err == nil &&
			n != int64(size.tp) {
			todo = fmt.Sprintf("with expert_tensor_parallel_size %d Megatron does not write all "+
				"of them, which shoal cannot put together; have Megatron load it and save it as "+
				"torch_dist", n)
		}
	}
	return fmt.Errorf("%s lacks %s: by the args in %s there are %d ranks (tp=%d, pp=%d, ep=%d), "+
		"and %d have a folder; %s",
		dir, strings.Join(names, ", "), first.file.Name, all, size.tp, size.pp, size.ep, len(there),
		todo)
}

// rankText formats a rank on axes of these sizes.
func (d degrees) rankText(size degrees) string {
	text := fmt.Sprintf("tp=%d, pp=%d", d.tp, d.pp)
	if size.ep > 1 {
		text += fmt.Sprintf(", ep=%d", d.ep)
	}
	return text
}

// findModels finds the models in the rank's file, and sets root and chunks.
func (p *part) findModels() error {
	root, ok := p.file.Root.(*pickle.Dict)
	if !ok {
		return fmt.Errorf("%s instead of a dict", pickle.KindWithArticle(p.file.Root))
	}
	p.root = root
	if m, err := pickle.Get[*pickle.Dict](root, "model"); err == nil {
		p.chunks = append(p.chunks, m)
	}
	for i := 0; ; i++ {
		m, err := pickle.Get[*pickle.Dict](root, "model"+strconv.Itoa(i))
		if err != nil {
			break
		}
		p.chunks = append(p.chunks, m)
	}
	if len(p.chunks) == 0 {
		return errors.New("it has no model")
	}
	return nil
}

// readDegrees reads the sizes of the axes from the arguments of the run.
func (p *part) readDegrees() (d degrees, err error) {
	args, ok := p.root.Get("args")
	if !ok {
		return d, errors.New("it has no args, which say how the model was cut")
	}
	for name, to := range map[string]*int{"tensor_model_parallel_size": &d.tp,
		"pipeline_model_parallel_size": &d.pp, "expert_model_parallel_size": &d.ep} {
		n, err := pickle.Get[int64](args, name)
		if err != nil && to == &d.ep {
			n = 1 // a Megatron before mixtures of experts
		} else if err != nil {
			return d, fmt.Errorf("args: %w", err)
		}
		if n < 1 || n > 1<<16 {
			return d, fmt.Errorf("args: %s is %d", name, n)
		}
		*to = int(n)
	}
	if is, _ := pickle.Get[bool](args, "moe_extended_tp"); is && d.ep > 1 {
		return d, errors.New("args: moe_extended_tp is true: ranks have parts of all experts, " +
			"which shoal cannot put together; have Megatron load it and save it as torch_dist")
	}
	return d, nil
}

// setRank sets the rank from the numbers in a folder's name: tp, then pp when there is a pipeline,
// then ep when experts are cut. d are the sizes of the axes.
func (p *part) setRank(name []string, d degrees) error {
	var numbers []int
	for _, s := range name {
		if s != "" {
			n, err := strconv.Atoi(s)
			if err != nil {
				return err
			}
			numbers = append(numbers, n)
		}
	}
	want := []*int{&p.tp}
	if d.pp > 1 {
		want = append(want, &p.pp)
	}
	if d.ep > 1 {
		want = append(want, &p.ep)
	}
	if len(want) != len(numbers) {
		return fmt.Errorf("the folder's name has %d ranks, and with pp=%d ep=%d there are %d",
			len(numbers), d.pp, d.ep, len(want))
	}
	for i, to := range want {
		*to = numbers[i]
	}
	if p.tp >= d.tp || p.pp >= d.pp || p.ep >= d.ep {
		return fmt.Errorf("the folder's name is of no rank with tp=%d pp=%d ep=%d", d.tp, d.pp,
			d.ep)
	}
	return nil
}

// addRankState adds to a checkpoint what is not part of the model: random states of each rank;
// optimizer state that goes by position, for the reason apart, and so belongs to that rank; and the
// values of the first rank.
func (p *part) addRankState(c *format.Checkpoint, size degrees, apart string) error {
	part := format.Checkpoint{}
	for _, item := range p.root.Items {
		key, ok := item.Key.(string)
		if !ok {
			return fmt.Errorf("%s: %s as a key", p.file.Name, pickle.KindWithArticle(item.Key))
		}
		if m, is := item.Value.(*pickle.Dict); is && slices.Contains(p.chunks, m) {
			continue
		}
		if key == optimizerKey && apart == "" {
			continue // its tensors have names
		}
		if err := p.file.Flatten(&part, key, item.Value); err != nil {
			return err
		}
	}
	if p.distributed != nil && apart != "" {
		if err := p.distributed.Flatten(&part, distributedKey, p.distributed.Root); err != nil {
			return err
		}
	}
	for _, t := range part.Tensors {
		t.Coords = p.coords(size, true, true)
		if strings.HasPrefix(t.Name, optimizerKey+".") {
			t.WhyPart = apart
		}
		c.Tensors = append(c.Tensors, t)
	}
	if p.tp+p.pp+p.ep == 0 {
		c.Values = append(c.Values, part.Values...)
	}
	return nil
}

// coords returns the coordinates of a part on the axes that cut it: tp, and as asked pp and ep.
func (p *part) coords(d degrees, pp, ep bool) (at format.Coords) {
	if ep && d.ep > 1 {
		at = append(at, format.Coord{Axis: "ep", Index: p.ep, Of: d.ep})
	}
	if pp && d.pp > 1 {
		at = append(at, format.Coord{Axis: "pp", Index: p.pp, Of: d.pp})
	}
	if d.tp > 1 {
		at = append(at, format.Coord{Axis: "tp", Index: p.tp, Of: d.tp})
	}
	return at
}

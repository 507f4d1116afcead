package megatron

import "github.com/shoal-ml/shoal/state/format"

// KVHeads returns how many heads k and v have in each layer of a model, from the arguments of the run that wrote a checkpoint. It
// is 0 where there are none, as in every other format.
func KVHeads(c *format.Checkpoint) int {
	name := "args.num_attention_heads" // so many have k and v too, if they have no groups
	if grouped, _ := c.Value("args.group_query_attention"); grouped == true {
		name = "args.num_query_groups"
	}
	v, _ := c.Value(name)
	if n, ok := v.(int64); ok && n > 0 && n <= 1<<20 {
		return int(n)
	}
	return 0
}

// Lists of keys, in the order of the alphabet.
#include "train/files/model_config_keys.h"

namespace slab::train {

const data::KeySet& harmless_config_keys() {
    static const data::KeySet keys = {"_attn_implementation",
                                      "_attn_implementation_autoset",
                                      "_name_or_path",
                                      "_model_name_or_path",
                                      "architectures",
                                      "attn_implementation",
                                      "bad_words_ids",
                                      "begin_suppress_tokens",
                                      "decoder_start_token_id",
                                      "diversity_penalty",
                                      "do_sample",
                                      "dtype",
                                      "early_stopping",
                                      "encoder_no_repeat_ngram_size",
                                      "exponential_decay_length_penalty",
                                      "finetuning_task",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "gradient_checkpointing",
                                      "id2label",
                                      "initializer_range",
                                      "is_llama_config",
                                      "label2id",
                                      "length_penalty",
                                      "max_length",
                                      "min_length",
                                      "n_ctx",
                                      "name_or_path",
                                      "no_repeat_ngram_size",
                                      "num_beam_groups",
                                      "num_beams",
                                      "num_labels",
                                      "num_return_sequences",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_scores",
                                      "pad_token_id",
                                      "predict_special_tokens",
                                      "prefix",
                                      "pretraining_tp",
                                      "problem_type",
                                      "remove_invalid_values",
                                      "reorder_and_upcast_attn",
                                      "repetition_penalty",
                                      "return_dict",
                                      "return_dict_in_generate",
                                      "sep_token_id",
                                      "summary_activation",
                                      "summary_first_dropout",
                                      "summary_proj_to_labels",
                                      "summary_type",
                                      "summary_use_proj",
                                      "suppress_tokens",
                                      "task_specific_params",
                                      "temperature",
                                      "tf_legacy_loss",
                                      "tokenizer_class",
                                      "top_k",
                                      "top_p",
                                      "torch_dtype",
                                      "torchscript",
                                      "transformers.js_config",
                                      "transformers_version",
                                      "typical_p",
                                      "unk_token_id",
                                      "unsloth_fixed",
                                      "unsloth_version",
                                      "use_bfloat16",
                                      "use_cache"};
    return keys;
}

const data::KeySet& config_keys_that_may_be_off() {
    static const data::KeySet keys = {"add_cross_attention",
                                      "attention_bias",
                                      "attention_dropout",
                                      "attn_pdrop",
                                      "chunk_size_feed_forward",
                                      "cross_attention_hidden_size",
                                      "embd_pdrop",
                                      "hidden_dropout",
                                      "is_decoder",
                                      "is_encoder_decoder",
                                      "mlp_bias",
                                      "pruned_heads",
                                      "quantization_config",
                                      "resid_pdrop",
                                      "rope_interleaved",
                                      "rope_scaling",
                                      "scale_attn_by_inverse_layer_idx",
                                      "sliding_window",
                                      "tie_encoder_decoder",
                                      "use_mrope",
                                      "use_sliding_window"};
    return keys;
}

void note_unknown_keys(const std::vector<std::string>& unknown, const std::string& file, const data::KeySet& known,
                       ModelConfig& config) {
    std::string listed;
    for (const std::string& key : unknown) {
        const std::string name = key.substr(1, key.find('"', 1) - 1);
        if (!known.contains(name)) listed += (listed.empty() ? "" : ", ") + key;
    }
    if (!listed.empty())
        config.notices.push_back(file + " has keys that are not known here: " + listed +
                                 ". They are taken as not in use");
}

}  // namespace slab::train

"""Samples shown in more than one way, and what that must not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.benchmarks.array_stream import ArrayStream
from kcl.errors import KclError
from kcl.methods import views
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Batch
from kcl.methods.recipes import METHODS, check_backbone
from kcl.methods.ridge_kernels import KERNELS
from kcl.models.continual_model import ContinualModel
from kcl.models.kernel_learner import KernelContinualLearner
from kcl.models.model_folder import load_model, save_model
from kcl.nets.backbone import ModuleBackbone
from kcl.nets.resnet import ResNet18

EVERYTHING: dict[str, Any] = {
    "rotation_labels": True,
    "test_views": "flip",
    "augmentation": "flip",
    "updates_per_batch": 2,
    "batch_norm": "coreset",
    "weight_average": 0.8,
    "optimizer": "muon",
    "muon_lr": 0.02,
    "warm_start": True,
    "log_variance_bound": 5.0,
    "soft_targets": 0.5,
    "test_strength": 0.4,
    "shared_metric": 0.6,
}


def _images(seed: int, classes: int, samples: int = 48) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    centres, labels = torch.rand(classes, 3, 6, 6, generator=random), torch.arange(samples) % classes
    noise = torch.rand(samples, 3, 6, 6, generator=random)
    return (160 * centres[labels] + 95 * noise).to(torch.uint8), labels


def _learner(seeded: Any, **settings: Any) -> KernelContinualLearner:
    """Two tasks of three and two classes, learned."""
    images, labels = _images(1, 2)
    stream = ArrayStream([_images(0, 3), (images, labels + 3)])
    with seeded(0):
        net = ResNet18((4, 8), (1, 2), stem=3, dropout=0.02)
    small = {"bases": 32, "coreset_size_per_class": 4, "lr": 0.01}
    learner = KernelContinualLearner(stream, backbone=net, **(small | settings))
    for task in stream:
        learner.learn(task)
    return learner


class TestCopies:
    def test_are_blocks_of_samples_rotations_within_mirror_images(self, draw: Any) -> None:
        x = draw.uniform(5, 3, 4, 4)
        blocks = views.copies(x, 4, 2).unflatten(0, (2, 4, 5))
        for turn in range(4):
            assert torch.equal(blocks[0, turn], torch.rot90(x, turn, (2, 3)))
            assert torch.equal(blocks[1, turn], torch.rot90(x.flip(3), turn, (2, 3)))
        assert views.copies(x, 1, 1) is x

    def test_labels_and_targets_agree(self, draw: Any) -> None:
        """One-hot targets of copies are those of their labels, and a label tells class and rotation."""
        labels = torch.tensor([2, 0, 1])
        shown = views.turned_labels(labels, 4)
        targets = views.turned_targets(torch.nn.functional.one_hot(labels, 3), 4, 2)
        assert torch.equal(targets, torch.nn.functional.one_hot(shown.repeat(2), 12))
        assert torch.equal(shown // 4, labels.repeat(4))
        assert torch.equal(shown % 4, torch.arange(4).repeat_interleave(3))
        assert views.pairs(torch.tensor([7, 2]), 4).tolist() == [28, 29, 30, 31, 8, 9, 10, 11]

    def test_the_vote_of_each_copy_is_that_of_its_own_rotation(self, draw: Any) -> None:
        scores = draw.normal(2 * 4 * 5, 3 * 4)
        found = views.vote(scores, 4, 2)
        for query in range(5):
            for value in range(3):
                own = [
                    scores[(mirror * 4 + turn) * 5 + query, value * 4 + turn]
                    for mirror in range(2)
                    for turn in range(4)
                ]
                assert float(found[query, value]) == pytest.approx(float(torch.stack(own).mean()), abs=1e-6)
        normalised = views.vote(scores.log_softmax(-1), 4, 2)
        torch.testing.assert_close(normalised.softmax(-1), found.softmax(-1))

    def test_a_mirror_falls_on_about_half_of_the_samples(self, draw: Any) -> None:
        x = draw.uniform(400, 1, 2, 2)
        shown = views.mirrored_by_chance(x, draw)
        turned = (shown == x.flip(-1)).flatten(1).all(1)
        assert torch.equal(shown[~turned], x[~turned])
        assert 150 < int(turned.sum()) < 250

    @pytest.mark.parametrize(("height", "width"), [(16, 16), (8, 24)])
    def test_a_moved_image_is_a_crop_of_itself_with_its_edge_repeated(self, draw: Any, height: int, width: int) -> None:
        x = draw.uniform(2000, 2, height, width)
        shown = views.moved_by_chance(x, draw)
        up, along = height // 8, width // 8
        wider = F.pad(x, (along, along, up, up), mode="replicate")
        crops = {
            (row, column): (shown == wider[:, :, row : row + height, column : column + width]).flatten(1).all(1)
            for row in range(2 * up + 1)
            for column in range(2 * along + 1)
        }
        found = torch.stack(list(crops.values()))
        assert torch.equal(found.sum(0), torch.ones(2000, dtype=torch.long))
        assert int(found.sum(1).min()) > 0.5 * 2000 / len(crops)  # every way to move it, about as often

    def test_what_is_varied_is_mirrored_then_moved(self, draw: Any) -> None:
        x = draw.uniform(50, 1, 8, 8)
        assert views.varied(x, "none", draw) is x
        state = draw.generator.get_state()
        mirrored = views.varied(x, "flip", draw)
        expected = views.moved_by_chance(mirrored, draw)
        draw.generator.set_state(state)
        assert torch.equal(views.varied(x, "flip-shift", draw), expected)


class TestAnswers:
    @pytest.mark.parametrize("draws", [1, 3])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_the_folded_head_answers_as_the_classifier_does(self, seeded: Any, kernel: str, draws: int) -> None:
        """With every ingredient, for both tasks; also when every task's head is asked and the right one is named."""
        learner = _learner(seeded, kernel=kernel, test_draws=draws, **EVERYTHING)
        model = learner.as_model()
        for index, ways in ((0, 3), (1, 2)):
            queries = learner.stream[index].test.inputs[:20] if len(learner.stream[index].test) else _images(5, 2)[0]
            expected = learner.logits(queries, index)
            assert expected.shape == (len(queries), ways)
            expected = expected / model.answerer.head(index).temperature
            torch.testing.assert_close(model.logits(queries, str(index)), expected, rtol=1e-3, atol=1e-3)
            found = model.predict(queries, str(index))
            confidence = expected.softmax(-1).amax(-1)
            torch.testing.assert_close(torch.from_numpy(found.confidence), confidence, rtol=1e-3, atol=1e-3)
            free = model.predict(queries)
            assert np.isfinite(free.variance).all()

    @pytest.mark.parametrize("kernel", ["linear", "rbf", "vrf"])
    def test_a_model_saved_and_loaded_answers_to_the_bit_and_learns_on(
        self, seeded: Any, tmp_path: Any, kernel: str
    ) -> None:
        with seeded(0):
            net = ResNet18((4, 6, 8), (1, 2, 1), stem=3, dropout=0.02, feature_stages=2)
        everything = EVERYTHING | {"feature_stages": 2}
        model = ContinualModel(backbone=net, kernel=kernel, bases=32, coreset_size_per_class=4, lr=0.01, **everything)
        model.learn(*_images(0, 3), task="first")
        save_model(model, tmp_path / "saved")
        again = load_model(tmp_path / "saved", backbone=net)
        queries = _images(3, 3)[0]
        assert torch.equal(again.logits(queries, "first"), model.logits(queries, "first"))
        for own in (model, again):
            own.learn(*_images(1, 2), task="second")
        for task in ("first", "second"):
            assert torch.equal(again.logits(queries, task), model.logits(queries, task))

    def test_a_lesson_that_fails_leaves_the_average_as_it_was(self, seeded: Any) -> None:
        with seeded(0):
            net = ResNet18((4, 8), (1, 2), stem=3, dropout=0.02)
        model = ContinualModel(backbone=net, kernel="linear", coreset_size_per_class=4, lr=0.01, weight_average=0.8)
        model.learn(*_images(0, 3), task="first")
        queries = _images(3, 3)[0]
        before = model.logits(queries, "first")

        def interrupt(step: Any) -> None:
            if step.step == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.learn(*_images(1, 2), task="second", on_step=interrupt)
        assert torch.equal(model.logits(queries, "first"), before)

    @pytest.mark.parametrize("settings", [{"test_views": "flip"}, {"test_views": "flip", "rotation_labels": True}])
    def test_mirroring_a_query_changes_nothing(self, seeded: Any, settings: dict[str, Any]) -> None:
        learner = _learner(seeded, kernel="linear", **settings)
        queries = _images(3, 3)[0]
        torch.testing.assert_close(learner.logits(queries, 0), learner.logits(queries.flip(-1), 0))

    @pytest.mark.parametrize("kernel", ["linear", "rbf", "vrf"])
    def test_images_that_are_their_own_mirror_images_are_answered_as_without_views(
        self, seeded: Any, kernel: str
    ) -> None:
        """λ grows with the number of mirror images: the same squared errors against the same λ."""
        images, labels = _images(0, 3)
        images = torch.cat([images[..., :3], images[..., :3].flip(-1)], dim=-1)
        stream = ArrayStream([(images, labels)])
        with seeded(0):
            net = ResNet18((4, 8), (1, 2), stem=3, dropout=0.0)
        found = []
        for test_views in ("plain", "flip"):
            small = {"bases": 32, "coreset_size_per_class": 4, "lr": 0.01, "test_views": test_views}
            learner = KernelContinualLearner(stream, kernel=kernel, backbone=net, **small)
            learner.learn(stream[0])
            found.append(learner.logits(images[:20], 0))
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)

    def test_an_answer_depends_on_no_other_query(self, seeded: Any) -> None:
        learner = _learner(seeded, kernel="linear", **EVERYTHING)
        queries = _images(3, 3)[0]
        torch.testing.assert_close(learner.logits(queries, 0)[:1], learner.logits(queries[:1], 0), rtol=1e-4, atol=1e-5)

    def test_what_is_stored_does_not_grow(self, seeded: Any) -> None:
        """But by learned targets, a float32 for each sample and class. Beside the tasks there is the average of the
        weights, which is told apart: here of float32 and counts.
        """
        learner, plain = _learner(seeded, **EVERYTHING), _learner(seeded)
        numbers = sum(parameter.numel() for parameter in learner.model.parameters())
        running = sum(2 * norm.num_features for norm in learner.model.modules() if hasattr(norm, "running_mean"))
        norms = sum(1 for norm in learner.model.modules() if hasattr(norm, "running_mean"))
        phases = learner.model.phases.numel()
        average = 4 * (numbers + running + phases) + 8 * norms
        use, targets = plain.memory_use, 12 * 3 + 8 * 2
        assert learner.memory_use == use | {"bytes": use["bytes"] + 4 * targets, "average_bytes": average}


class TestAgainstNumPy:
    """The whole method, linear kernel on features of unit length, written down again in double precision."""

    STRENGTH, SCALE, SHIFT = 0.37, 3.1, -0.4

    @pytest.fixture
    def made(self, seeded: Any) -> tuple[Any, Any, dict[str, Tensor], Tensor, Tensor]:
        settings = KclSettings(kernel="linear", rotation_labels=True, test_views="flip", coreset_size_per_class=2)
        with seeded(0):
            net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 7), torch.nn.Tanh())
            method = METHODS["kcl"](settings, 3, 3)
            model = method.make(ModuleBackbone(net, (3, 4, 4))).double()
            coreset, batch = torch.rand(6, 3, 4, 4).double(), torch.rand(5, 3, 4, 4).double()
        with torch.no_grad():
            for name, value in (("raw_strength", self.STRENGTH - 0.01), ("scale", self.SCALE), ("shift", self.SHIFT)):
                getattr(model.head, name).fill_(value)
        memory = method.end_task(model, {"inputs": coreset, "targets": torch.eye(3, dtype=torch.uint8).repeat(2, 1)})
        return method, model, memory, batch, torch.tensor([2, 0, 1, 1, 2])

    def _features(self, model: Any, image: np.ndarray) -> np.ndarray:
        weight, bias = (own.detach().numpy() for own in model.backbone.module[1].parameters())
        features = np.tanh(weight @ image.reshape(-1) + bias)
        return features / np.linalg.norm(features)

    def _turned(self, image: np.ndarray, quarters: int) -> np.ndarray:
        """Pixel by pixel: a quarter turn takes row i, column j from row j, column last − i."""
        for _ in range(quarters):
            last = image.shape[-1] - 1
            image = np.array(
                [[[plane[j, last - i] for j in range(last + 1)] for i in range(last + 1)] for plane in image]
            )
        return image

    def _weights(self, model: Any, images: list[tuple[np.ndarray, int]], strength: float) -> np.ndarray:
        """Primal ridge regression from images and their pairs of class and rotation: (FᵀF + λI)⁻¹ FᵀY."""
        features = np.stack([self._features(model, image) for image, _ in images])
        targets = np.eye(12)[[label for _, label in images]]
        return np.linalg.solve(features.T @ features + strength * np.eye(7), features.T @ targets)

    def test_the_loss(self, made: Any, draw: Any) -> None:
        method, model, memory, batch, labels = made
        images = [
            (self._turned(image.numpy(), turn), 4 * (place % 3) + turn)
            for place, image in enumerate(memory["inputs"])
            for turn in range(4)
        ]
        weights, losses = self._weights(model, images, self.STRENGTH), []
        for image, label in zip(batch.numpy(), labels.tolist(), strict=True):
            for turn in range(4):
                scores = self.SCALE * self._features(model, self._turned(image, turn)) @ weights + self.SHIFT
                losses.append(np.log(np.exp(scores).sum()) - scores[4 * label + turn])
        [found] = method.observe(model, memory, Batch(batch, labels), draw)
        assert found.item() == pytest.approx(np.mean(losses), rel=1e-9)

    def test_the_vote(self, made: Any, draw: Any) -> None:
        """Mirror images are anchors too, against twice the λ."""
        method, model, memory, batch, _ = made
        images = [
            (self._turned(shown, turn), 4 * (place % 3) + turn)
            for place, image in enumerate(memory["inputs"].numpy())
            for shown in (image, image[:, :, ::-1])
            for turn in range(4)
        ]
        weights = self._weights(model, images, 2 * self.STRENGTH)
        with torch.no_grad():
            found = method.answer(model, method.classifier(model, method.show(memory), draw), batch)
        for image, own in zip(batch.numpy(), found.numpy(), strict=True):
            votes = np.zeros(3)
            for shown in (image, image[:, :, ::-1]):
                for turn in range(4):
                    scores = self.SCALE * self._features(model, self._turned(shown, turn)) @ weights + self.SHIFT
                    votes += [scores[4 * value + turn] / 8 for value in range(3)]
            np.testing.assert_allclose(own, votes, rtol=1e-9)


class TestBatchNorm:
    def test_statistics_of_a_set_are_those_of_a_training_pass_over_it(self, seeded: Any, draw: Any) -> None:
        with seeded(0):
            net = ResNet18((4, 8), (1, 2), stem=3, dropout=0.0)
        coreset, others = draw.uniform(9, 3, 6, 6), draw.uniform(4, 3, 6, 6)
        with torch.no_grad():
            features, moments = net.gather(coreset)
            again = net(coreset, None, moments)
            other = net(torch.cat([others, coreset]), None, moments)
            trained = net(coreset, draw)
        torch.testing.assert_close(features, trained, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again, features, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other[4:], features, rtol=1e-4, atol=1e-5)
        assert len(moments) == sum(2 * norm.num_features for norm in net.modules() if hasattr(norm, "running_mean"))

    def test_the_running_statistics_are_not_looked_at(self, seeded: Any) -> None:
        learner = _learner(seeded, kernel="linear", batch_norm="coreset")
        queries = _images(3, 3)[0]
        before = learner.logits(queries, 0)
        for name, buffer in learner.model.named_buffers():
            if "running" in name:
                buffer.fill_(3.0)
        learner._stack.weights_changed()
        assert torch.equal(learner.logits(queries, 0), before)


class TestRefused:
    @pytest.mark.parametrize(
        ("setting", "told"),
        [
            ({"rotation_labels": True}, "rotation_labels: for a backbone that sees images"),
            ({"test_views": "flip"}, "test_views: for a backbone that sees images"),
            ({"augmentation": "flip"}, "augmentation: for a backbone that sees images"),
            ({"batch_norm": "coreset"}, "needs a backbone with BatchNorm"),
        ],
    )
    def test_by_a_backbone_that_cannot(self, setting: dict[str, Any], told: str) -> None:
        with pytest.raises(KclError, match=told):
            check_backbone((1, 28, 28), KclSettings(**setting))
        images, labels = torch.zeros(40, 1, 6, 6, dtype=torch.uint8), torch.arange(40) % 2
        with pytest.raises(KclError, match=told):
            KernelContinualLearner(ArrayStream([(images, labels)]), **setting)

    def test_muon_without_matrices(self) -> None:
        with pytest.raises(KclError, match="muon needs a backbone with matrices"):
            check_backbone((20,), KclSettings(optimizer="muon", backbone="identity"))

    @pytest.mark.parametrize(("shape", "told"), [((40, 3, 6, 8), "square images, not 6 × 8"), ((40, 9), "for images")])
    def test_shapes_that_cannot_be_turned(self, seeded: Any, shape: tuple[int, ...], told: str) -> None:
        stream = ArrayStream([(torch.zeros(*shape), torch.arange(40) % 2)])
        with seeded(0):
            net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
            net(torch.zeros(shape))
        learner = KernelContinualLearner(stream, backbone=net, rotation_labels=True, coreset_size_per_class=2)
        with pytest.raises(KclError, match=told):
            learner.learn(stream[0])
